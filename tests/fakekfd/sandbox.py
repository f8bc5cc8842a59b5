"""A private mount namespace in which this machine has AMD GPUs: the fake's, in /sys and /dev."""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path

from tests.fakekfd import topology
from tests.fakekfd.driver import Driver
from tests.fakekfd.fuse import libc
from tests.fakekfd.fuse_kfd import FakeKfd

CLONE_NEWNS = 0x20000
MS_BIND, MS_REC, MS_PRIVATE, MS_SHARED = 4096, 16384, 1 << 18, 1 << 20
CHECKOUT = Path(__file__).parents[2]
AGENT = Path("/run/nodeagent")
STAGE = Path("/run/fakekfd")  # a tmpfs in the namespace, on a directory that stays


def enter(model: topology.Model, driver: Driver) -> FakeKfd:
    """Move this process into a namespace of its own, and put the fake's files in place there."""
    if libc.unshare(CLONE_NEWNS):
        raise _failure("unshare the mount namespace")
    _mount("none", Path("/"), None, MS_PRIVATE | MS_REC)
    _own_run()
    kept = _mounts_below("/sys", "/dev")
    for place in ("sys", "dev"):
        for part in ("upper", "work", "old"):
            (STAGE / place / part).mkdir(parents=True)
        _mount(f"/{place}", STAGE / place / "old", None, MS_BIND | MS_REC)
    (STAGE / "fake").mkdir()
    fake = FakeKfd(driver, STAGE / "fake")
    devices = list(driver.gpus.values())
    topology.write(STAGE / "sys/upper", model, devices)
    _write_devices(STAGE / "dev/upper", [gpu.minor for gpu in devices])
    for place in ("sys", "dev"):
        here = STAGE / place
        options = f"lowerdir=/{place},upperdir={here}/upper,workdir={here}/work"
        _mount("overlay", Path("/", place), "overlay", data=options)
    for mounted in kept:
        first, rest = mounted.lstrip("/").split("/", 1)
        _bind(STAGE / first / "old" / rest, Path(mounted))
    _bind(fake.kfd, Path("/dev/kfd"))
    _bind(fake.proc, Path("/sys", topology.KFD, "proc"))
    for index, gpu in enumerate(devices):
        _bind(fake.render(gpu.minor), Path(f"/dev/dri/renderD{gpu.minor}"))
        _bind(fake.directory / f"used/{gpu.minor}", Path("/sys", topology.used_file(index)))
    _show_module()
    return fake


def _own_run() -> None:
    """A /run of our own, with nothing of this machine's agents in it.

    A plain mount in the machine's would go as soon as somebody outside removes the directory that it is on.
    """
    STAGE.mkdir(exist_ok=True)
    _mount("tmpfs", STAGE, "tmpfs", data="mode=755")
    for part in ("upper", "work"):
        (STAGE / part).mkdir()
    options = f"lowerdir=/run,upperdir={STAGE}/upper,workdir={STAGE}/work"
    _mount("overlay", Path("/run"), "overlay", data=options)
    for place, mode in ((AGENT, "711"), (STAGE, "755")):
        place.mkdir(exist_ok=True)
        _mount("tmpfs", place, "tmpfs", data=f"mode={mode}")


def _show_module() -> None:
    """An older rocminfo looks for the driver by lsmod; /proc/modules is not in every kernel to be covered."""
    lsmod = shutil.which("lsmod")
    if lsmod is not None:
        stub = STAGE / "lsmod"
        stub.write_text("#!/bin/sh\necho 'amdgpu 1 0'\n")
        stub.chmod(0o755)
        _bind(stub, Path(lsmod).resolve())


def bring_into(root: Path) -> None:
    """Show this namespace's kernel files, /run, /tmp and the checkout in a chroot, too, as in a container.

    The chroot's own files stay as they are: what is written there goes to memory.
    """
    # What the agent mounts later, such as the hook's usage files, is to be seen there as well.
    _mount("none", Path("/"), None, MS_SHARED | MS_REC)
    layer = STAGE / "root"
    for part in ("upper", "work"):
        (layer / part).mkdir(parents=True)
    options = f"lowerdir={root},upperdir={layer}/upper,workdir={layer}/work"
    _mount("overlay", root, "overlay", data=options)
    for place in map(Path, ("/proc", "/sys", "/dev", "/run", "/tmp", CHECKOUT)):
        inside = root / place.relative_to("/")
        inside.mkdir(parents=True, exist_ok=True)
        _mount(str(place), inside, None, MS_BIND | MS_REC)


def _write_devices(root: Path, minors: list[int]) -> None:
    (root / "dri").mkdir()
    for name in ("kfd", *(f"dri/renderD{minor}" for minor in minors)):
        (root / name).touch()


def _mounts_below(*tops: str) -> list[str]:
    """Mount points directly in or under *tops*, outer ones first; an overlay shows none of them by itself."""
    found = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return sorted({place for place in found if any(place.startswith(top + "/") for top in tops)})


def _bind(source: Path, target: Path) -> None:
    _mount(str(source), target, None, MS_BIND)


def _mount(source: str, target: Path, kind: str | None, flags: int = 0, data: str | None = None) -> None:
    words = [None if word is None else os.fsencode(word) for word in (kind, data)]
    if libc.mount(os.fsencode(source), os.fsencode(target), words[0], ctypes.c_ulong(flags), words[1]):
        raise _failure(f"mount {kind or source} on {target}")


def _failure(what: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, f"cannot {what}: {os.strerror(code)}")
