"""Run inside a lease: try each way out that is open to a program without ROCm, and print what came of it.

``attempts.py DEV DEVICES``: where the device nodes are, and JSON of all devices (`gpu_id`, `render_node`).
Prints ``{"lease": …, "outcomes": {device: {way: outcome}}}``; the device "" is the lease as a whole. What is
got is given back at once. Needs Python 3.9 and gpulease in its path, and nothing of nodeagent: its holder may
be any user. Numbers from include/uapi/linux/kfd_ioctl.h and amdgpu_drm.h.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

ACQUIRE_VM, ALLOC, FREE = 0x4008_4B15, 0xC028_4B16, 0x4008_4B17
GEM_CREATE, GEM_CLOSE = 0xC020_6440, 0x4008_6409
ODD = 0x0028_4B16  # the same call as the driver reads it: it goes by the number alone
IOCTL = 16  # x86-64
VRAM, WRITABLE, NO_SUBSTITUTE = 1, 1 << 31, 1 << 28
GEM_VRAM = 4
FITS, MIB = 16 << 20, 1 << 20
REFUSED, TAKEN = "refused", "taken"
PROGRAM = str(Path(__file__).resolve())

libc = ctypes.CDLL(None, use_errno=True)
Buffer = Any  # ctypes.Array[c_char]
Ask = Callable[[int, int, Buffer], int]


@dataclass(frozen=True)
class Target:
    """A device, and how much of it to ask for."""

    dev: str
    gpu_id: int
    render_node: str
    size: int


def by_library(fd: int, request: int, argument: Buffer) -> int:
    """The C library's ioctl, or what stands before it; 0 or the errno."""
    return 0 if libc.ioctl(fd, ctypes.c_ulong(request), argument) == 0 else ctypes.get_errno()


def by_kernel(fd: int, request: int, argument: Buffer) -> int:
    """The system call itself."""
    done = libc.syscall(ctypes.c_long(IOCTL), fd, ctypes.c_ulong(request), argument)
    return 0 if done == 0 else ctypes.get_errno()


def kfd(target: Target, ask: Ask = by_library, request: int = ALLOC) -> str:
    """Ask KFD for VRAM."""
    device = os.open(f"{target.dev}/kfd", os.O_RDWR)
    render = os.open(f"{target.dev}/dri/{target.render_node}", os.O_RDWR)
    ask(device, ACQUIRE_VM, packed("=II", render, target.gpu_id))
    range_ = mmap.mmap(-1, target.size)  # an address that nothing else is at; nobody touches it
    address = ctypes.addressof(ctypes.c_char.from_buffer(range_))
    flags = VRAM | WRITABLE | NO_SUBSTITUTE
    argument = packed("=QQQQII", address, target.size, 0, 0, target.gpu_id, flags)
    number = ask(device, request, argument)
    if number == 0:
        ask(device, FREE, packed("=Q", struct.unpack_from("=Q", argument.raw, 16)[0]))
    return said(number)


def gem(target: Target, ask: Ask = by_library) -> str:
    """Ask the render node, as graphics do."""
    render = os.open(f"{target.dev}/dri/{target.render_node}", os.O_RDWR)
    argument = packed("=QQQQ", target.size, 4096, GEM_VRAM, 0)
    number = ask(render, GEM_CREATE, argument)
    if number == 0:
        ask(render, GEM_CLOSE, packed("=II", struct.unpack_from("=I", argument.raw)[0], 0))
    return said(number)


def bare(target: Target) -> str:
    """By a program that was started without an environment."""
    words = [sys.executable, "-I", "-S", PROGRAM, "--one", json.dumps(astuple(target))]
    done = subprocess.run(words, env={}, stdout=subprocess.PIPE, check=False)
    return done.stdout.decode() or "it ended without a word"


def orphan(target: Target) -> str:
    """By a grandchild in a session of its own."""
    os.setsid()
    return apart(lambda: kfd(target))


def hooked_elsewhere(target: Target) -> str:
    """By a program that names limits of its own."""
    os.environ["GPULEASE_HOOK"] = "/dev/null"
    words = [sys.executable, PROGRAM, "--one", json.dumps(astuple(target))]
    done = subprocess.run(words, stdout=subprocess.PIPE, check=False)
    return done.stdout.decode() or "it ended without a word"


def move(mount: str, own: str) -> str:
    """Write oneself into every cgroup on the way up, and into the usual ones."""
    if os.geteuid() == 0:
        return "root may, by right: audit as a user"
    above = [own.rsplit("/", depth)[0] or "/" for depth in range(1, own.count("/") + 1)]
    for path in [*above, "/user.slice", "/system.slice"]:
        try:
            written(f"{mount}{path}/cgroup.procs", "0")
            return f"{TAKEN}: {path}"
        except OSError:
            continue
    return REFUSED


def raise_limits(mount: str, own: str) -> str:
    """Write the limits that the lease's cgroup has, and make a cgroup in it."""
    if os.geteuid() == 0:
        return "root may, by right: audit as a user"
    directory = f"{mount}{own}"
    names = (entry.name for entry in Path(directory).iterdir())
    files = [name for name in names if name.endswith((".max", ".min", ".low", ".procs"))]
    for name in sorted(files):
        try:
            os.close(os.open(f"{directory}/{name}", os.O_WRONLY))
            return f"{TAKEN}: {name} can be written"
        except OSError:
            continue
    return REFUSED


def daemonise(mount: str, own: str) -> str:
    """Where a grandchild in a session of its own is."""
    os.setsid()
    there = apart(lambda: cgroup_of("self") or "nowhere")
    return REFUSED if there == own or there.startswith(f"{own}/") else f"{TAKEN}: it is in {there}"


def write_limits(limits: str) -> str:
    """Open the hook's limits for writing, or put others in their place."""
    if os.geteuid() == 0:
        return "root may, by right: audit as a user"
    for path in (limits, f"{limits}.new"):
        try:
            os.close(os.open(path, os.O_WRONLY | (os.O_CREAT if path != limits else 0)))
            return f"{TAKEN}: {path} can be written"
        except OSError:
            continue
    return REFUSED


def on_device(target: Target, other: Target | None) -> dict[str, str]:
    """What came of each way on one device."""
    fits = replace(target, size=FITS)
    ways: dict[str, Callable[[], str]] = {
        "KFD, what fits": lambda: kfd(fits),
        "render node, what fits": lambda: gem(fits),
        "KFD, more than the slice": lambda: kfd(target),
        "KFD, by a system call": lambda: kfd(target, by_kernel),
        "KFD, a request of an odd size": lambda: kfd(target, request=ODD),
        "KFD, env -i": lambda: bare(target),
        "KFD, setsid and double fork": lambda: orphan(target),
        "KFD, GPULEASE_HOOK elsewhere": lambda: hooked_elsewhere(target),
        "render node, more than the slice": lambda: gem(target),
        "render node, by a system call": lambda: gem(target, by_kernel),
    }
    if other is not None:
        ways["KFD, a GPU that is not leased"] = lambda: kfd(replace(other, size=FITS))
    return {name: apart(way) for name, way in ways.items()}


def on_the_node() -> dict[str, str]:
    """What came of the ways that need no GPU."""
    mount, own = mounted(), cgroup_of("self")
    limits = os.environ.get("GPULEASE_HOOK")
    absent = "the lease has no cgroup that this program sees"
    there = mount is not None and own not in (None, "/") and Path(f"{mount}{own}").is_dir()
    ways: dict[str, Callable[[str, str], str]] = {
        "moving to another cgroup": move,
        "writing the lease's limits in its cgroup": raise_limits,
        "a daemon of one's own (setsid, double fork)": daemonise,
    }
    found = {
        name: apart(partial(way, mount or "", own or "")) if there else absent for name, way in ways.items()
    }
    hook = "no hook is in the lease"
    found["writing the hook's limits"] = apart(lambda: write_limits(str(limits))) if limits else hook
    return found


def apart(way: Callable[[], str]) -> str:
    """In a process of its own: an opened KFD is the process's until it ends, and so is a cgroup."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, attempt(way).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as report:
        outcome = report.read()
    os.waitpid(child, 0)
    return outcome or "it ended without a word"


def attempt(way: Callable[[], str]) -> str:
    try:
        return way()
    except OSError as fault:
        if fault.errno == errno.ENOMEM:
            return REFUSED
        return f"{fault.filename or 'the system'}: {fault.strerror}"


def said(number: int) -> str:
    """What an errno of an allocation stands for. EPERM and EACCES are refusals of a fence, too."""
    if number == 0:
        return TAKEN
    if number in (errno.ENOMEM, errno.EPERM, errno.EACCES):
        return REFUSED
    return f"the driver says {errno.errorcode.get(number, number)}"


def packed(layout: str, *values: int) -> Buffer:
    content = struct.pack(layout, *values)
    return ctypes.create_string_buffer(content, len(content))


def written(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode("ascii"))
    finally:
        os.close(descriptor)


def cgroup_of(pid: str) -> str | None:
    with Path(f"/proc/{pid}/cgroup").open(encoding="utf-8", errors="replace") as file:
        return next((line[3:].rstrip("\n") for line in file if line.startswith("0::")), None)


def mounted() -> str | None:
    """Where cgroup2 is."""
    with Path("/proc/self/mountinfo").open(encoding="utf-8", errors="replace") as file:
        found = [line.split()[4] for line in file if " - cgroup2 " in line]
    return min(found, key=len, default=None)


def main(dev: str, devices: str) -> None:
    """Try everything, and print it."""
    from gpulease.transport import Transport  # not in the bare program

    api = Transport(os.environ["GPULEASE_SOCKET"], timeout=30)
    lease: Mapping[str, Any] = json.loads(api.call("GET", f"/v1/leases/{os.environ['GPULEASE_ID']}").body)
    known = {one["device"]: one for one in json.loads(devices)}
    leased = {one["device"]: one["vram_bytes"] for one in lease["slices"]}
    targets = {
        key: Target(dev, one["gpu_id"] or 0, one["render_node"], leased.get(key, 0) + 64 * MIB)
        for key, one in known.items()
        if one["render_node"]
    }
    other = next((targets[key] for key in sorted(targets) if key not in leased), None)
    outcomes = {key: on_device(targets[key], other) for key in leased if key in targets}
    print(
        json.dumps(
            {
                "lease": lease["id"],
                "guarantee": lease["guarantee"],
                "outcomes": {**outcomes, "": on_the_node()},
            }
        )
    )


if __name__ == "__main__":
    if sys.argv[1] == "--one":
        print(attempt(lambda: kfd(Target(*json.loads(sys.argv[2])))), end="")
    else:
        main(*sys.argv[1:])
