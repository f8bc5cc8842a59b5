"""Try to take more VRAM than a lease has, by each path that the node allows, from inside the lease.

usage: attack.py DEV DIRECTORY [-- COMMAND…]

Goes for more than the slice on each of the lease's devices, whose nodes are below DEV, by each path, and
gives back at once what it got. Writes DIRECTORY/<lease id>.json: by device and path "refused", "taken", or
why the path does not exist here. Then becomes COMMAND, so that a lease that lives for one command alone is
attacked, too. Runs as the lease's holder, so with any Python 3; gpulease must be in its path. In a container,
which has no socket to ask, DIRECTORY/targets.json says what there is.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path

ALLOC, FREE, ACQUIRE = 0xC0284B16, 0x40084B17, 0x40084B15
GEM_CREATE, GEM_CLOSE = 0xC0206440, 0x40086409
SYS_IOCTL = 16  # x86-64
ODD_REQUEST = 0x284B16  # without a direction: KFD looks at the number, and at how many bytes to copy
VRAM, WRITABLE, PUBLIC = 1, 1 << 31, 1 << 29
VA = 0x7F0000000000
MIB = 1 << 20

libc = ctypes.CDLL(None, use_errno=True)
Buffer = ctypes.Array[ctypes.c_char]
Ask = Callable[[int, int, Buffer], int]


@dataclass(frozen=True)
class Target:
    """One device of the lease, and more bytes than the lease has there."""

    dev: str
    gpu_id: int
    minor: int
    size: int

    def kfd(self) -> int:
        return os.open(f"{self.dev}/kfd", os.O_RDWR)

    def render(self) -> int:
        return os.open(f"{self.dev}/dri/renderD{self.minor}", os.O_RDWR)


def library(fd: int, request: int, argument: Buffer) -> int:
    """As most programs do: the C library's ioctl, or whatever stands before it. Gives 0 or the errno."""
    return 0 if libc.ioctl(fd, ctypes.c_ulong(request), argument) == 0 else ctypes.get_errno()


def system_call(fd: int, request: int, argument: Buffer) -> int:
    """Past every library."""
    result = libc.syscall(ctypes.c_long(SYS_IOCTL), fd, ctypes.c_ulong(request), argument)
    return 0 if result == 0 else ctypes.get_errno()


def kfd(target: Target, ask: Ask = library, request: int = ALLOC) -> str:
    """Allocate through KFD."""
    device, render = target.kfd(), target.render()
    ask(device, ACQUIRE, ctypes.create_string_buffer(struct.pack("<II", render, target.gpu_id), 8))
    packed = struct.pack("<QQQQII", VA, target.size, 0, 0, target.gpu_id, VRAM | WRITABLE | PUBLIC)
    argument = ctypes.create_string_buffer(packed, len(packed))
    if number := ask(device, request, argument):
        return _refusal(number)
    ask(device, FREE, ctypes.create_string_buffer(argument.raw[16:24], 8))
    return "taken"


def gem(target: Target, ask: Ask = library) -> str:
    """Allocate through the render node, as graphics do."""
    render = target.render()
    argument = ctypes.create_string_buffer(struct.pack("<QQQQ", target.size, 4096, 4, 0), 32)
    if number := ask(render, GEM_CREATE, argument):
        return _refusal(number)
    ask(render, GEM_CLOSE, ctypes.create_string_buffer(argument.raw[:4] + bytes(4), 8))
    return "taken"


def command(target: Target) -> str:
    """Allocate from the rig's driver, whose render nodes take commands."""
    render = target.render()
    os.write(render, b"alloc %d" % target.size)
    os.write(render, b"free all")
    return "taken"


def elsewhere(target: Target) -> str:
    """The same, after a try to leave the lease's cgroup."""
    if os.geteuid() == 0:
        return "no way in: root needs none"
    own = f"user.slice/user-{os.getuid()}.slice"
    for group in ("", "user.slice", own, f"{own}/user@{os.getuid()}.service"):
        try:
            Path("/sys/fs/cgroup", group, "cgroup.procs").write_text("0", encoding="ascii")
        except OSError:
            continue
    return command(target)


def bare(target: Target) -> str:
    """By the library, with nothing in the environment, as after ``env -i``."""
    words = [sys.executable, "-I", "-S", __file__, "--only", *map(str, astuple(target))]
    done = subprocess.run(words, env={}, stdout=subprocess.PIPE, check=False)
    return done.stdout.decode() or "ended"


def orphan(target: Target) -> str:
    """By a grandchild in a session of its own."""
    os.setsid()
    return apart(kfd, target)


PATHS: dict[str, Callable[[Target], str]] = {
    "kfd by the library": kfd,
    "kfd by a system call": lambda target: kfd(target, system_call),
    "kfd by an odd request": lambda target: kfd(target, request=ODD_REQUEST),
    "kfd without the environment": bare,
    "kfd by an orphan": orphan,
    "gem by the library": gem,
    "gem by a system call": lambda target: gem(target, system_call),
    "the rig's driver": command,
    "the rig's driver from another cgroup": elsewhere,
}


def apart(path: Callable[[Target], str], target: Target) -> str:
    """One path in a process of its own: an opened KFD is the process's until it ends."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, attempt(path, target).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as report:
        outcome = report.read()
    os.waitpid(child, 0)
    return outcome or "ended"


def attempt(path: Callable[[Target], str], target: Target) -> str:
    """What came of it; a node that is not there, or takes no such call, is no way in."""
    try:
        return path(target)
    except OSError as fault:
        if fault.errno == errno.ENOMEM:
            return "refused"
        return f"no way in: {errno.errorcode.get(fault.errno or 0, fault.errno)}"


def _refusal(number: int) -> str:
    if number == errno.ENOMEM:
        return "refused"
    # A node without such a call, and KFD on a size that is not its own, gave nothing.
    what = "no way in" if number in (errno.ENOTTY, errno.EINVAL) else "failed"
    return f"{what}: {errno.errorcode.get(number, number)}"


def targets(dev: str, directory: str) -> dict[str, Target]:
    """By device: what the lease that we are in has there, and 64 MiB more."""
    given = Path(directory, "targets.json")
    if given.exists():
        return {device: Target(dev, *numbers) for device, numbers in json.loads(given.read_text()).items()}
    from gpulease.transport import Transport  # not in the bare environment

    api = Transport(os.environ["GPULEASE_SOCKET"], timeout=120)
    devices = json.loads(api.call("GET", "/v1/devices").body)["devices"]
    lease = json.loads(api.call("GET", f"/v1/leases/{os.environ['GPULEASE_ID']}").body)
    known = {one["device"]: one for one in devices}
    found = {}
    for held in lease["slices"]:
        device = known[held["device"]]
        # A dump may lack the number; then its node has no KFD to ask either.
        minor = int(device["render_node"].removeprefix("renderD"))
        found[held["device"]] = Target(dev, device["gpu_id"] or 0, minor, held["vram_bytes"] + 64 * MIB)
    return found


def main(dev: str, directory: str, *command: str) -> None:
    """Attack, write down what came of it, go on as *command*."""
    outcomes = {
        device: {name: apart(path, target) for name, path in PATHS.items()}
        for device, target in targets(dev, directory).items()
    }
    written = Path(directory, f".{os.getpid()}")
    written.write_text(json.dumps(outcomes), encoding="utf-8")
    written.rename(Path(directory, f"{os.environ['GPULEASE_ID']}.json"))
    if command:
        os.execvp(command[1], command[1:])


if __name__ == "__main__":
    if sys.argv[1] == "--only":
        print(attempt(kfd, Target(sys.argv[2], *map(int, sys.argv[3:]))), end="")
    else:
        main(*sys.argv[1:])
