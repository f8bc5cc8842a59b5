"""Gathers what the checks of cgroups, VRAM limits and programs judge."""

from __future__ import annotations

import os
import platform
import re
import resource
import stat
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.cgroup_mount import mounts
from nodeagent.adapters.closure import RECORD, OutsideCgroups
from nodeagent.adapters.dmem import CONTROLLER, DmemController
from nodeagent.adapters.hook_files import LIBRARY
from nodeagent.doctor.scene import Scene
from nodeagent.domain.device import DeviceState
from nodeagent.domain.doctor.cgroups import CLOSED, Cgroups, Vram
from nodeagent.domain.doctor.programs import Programs
from nodeagent.domain.errors import OutsideFault
from nodeagent.service.kernel import HOLDS

_SYSTEMD = "run/systemd/system"  # sd_booted(3)
_SECONDS = 5.0
_GPU_FILES = re.compile(r"(nccl-|hip_|torch_|psm_|vllm)")  # RCCL's, HIP's, PyTorch's, vLLM's in /dev/shm
_OTHERS_CAN_WRITE = stat.S_IWGRP | stat.S_IWOTH


def cgroups(scene: Scene) -> Cgroups:
    """The hierarchy as it is mounted and enabled. Nothing is made in it."""
    mount = scene.mount
    if mount is None:
        return Cgroups(None, legacy=_legacy(scene), root=scene.root_user)
    return Cgroups(
        str(mount),
        legacy=_legacy(scene),
        controllers=_words(mount / "cgroup.controllers"),
        enabled=_words(mount / "cgroup.subtree_control"),
        writable=_unwritable(mount),
        kills=_kills(mount),
        systemd=scene.tree.exists(_SYSTEMD),
        root=scene.root_user,
    )


def vram(scene: Scene) -> Vram:
    """What dmem offers, what the agent says that its limits are worth, and what is open outside leases."""
    tree = scene.cgroups
    if tree is None:
        return Vram(False)
    dmem, (holds, why) = DmemController(tree), _holds(scene)
    leased = {one.pci for one in scene.inventory.devices if one.state is not DeviceState.EXCLUDED and one.pci}
    capacity = dmem.capacity()
    return Vram(
        offered=CONTROLLER in _words(tree.mount / "cgroup.controllers"),
        cards=tuple(sorted(leased)),
        capacity=capacity,
        holds=holds,
        why=why,
        enabled=scene.config.closure.enabled,
        open=dict(_open(scene, tree, dmem, capacity)) if holds else {},
    )


def programs(scene: Scene) -> Programs:
    """The C library, the hook, limits, /dev/shm: tried with a program that does nothing."""
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except ValueError:  # musl knows no such name
        libc = ""
    shm = scene.at("/dev/shm")  # noqa: S108
    return Programs(
        machine=platform.machine(),
        glibc=libc.removeprefix("glibc ") or None,
        hook=str(LIBRARY),
        hook_there=LIBRARY.is_file(),
        hook_enabled=scene.config.hook.enabled,
        hook_trouble=hook_trouble(LIBRARY) if LIBRARY.is_file() else None,
        files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        shm_used=_used(shm),
        shm_leftovers=_leftovers(shm, scene.at("/proc")),
    )


def hook_trouble(library: Path) -> str | None:
    """Why a program does not start with *library* in it, or others than root can change it."""
    status = library.stat()
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & _OTHERS_CAN_WRITE:
        return f"{library}: others than root can write it"
    try:
        ran = subprocess.run(
            ["/bin/true"],
            env={"LD_PRELOAD": str(library)},
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as fault:
        return f"/bin/true does not run with it: {fault}"
    if ran.returncode or ran.stderr:
        return ran.stderr.strip() or f"/bin/true ends with {ran.returncode}"
    return None


def _legacy(scene: Scene) -> tuple[str, ...]:
    """Controllers of version 1, by the names that their mount points have."""
    try:
        raw = scene.at("/proc/self/mountinfo").read_bytes()
    except OSError:
        return ()
    points = (point.name for point, _, _ in mounts(raw, (b"cgroup",)))
    return tuple(sorted({name for point in points for name in point.split(",")} - {"systemd", "elogind"}))


def _words(path: Path) -> tuple[str, ...]:
    try:
        return tuple(path.read_text(encoding="ascii", errors="replace").split())
    except OSError:
        return ()


def _unwritable(mount: Path) -> str | None:
    if os.access(mount, os.W_OK):
        return None
    return f"{mount}: " + (
        "is mounted read-only" if os.statvfs(mount).f_flag & os.ST_RDONLY else "no write access"
    )


def _kills(mount: Path) -> bool:
    """Whether cgroups here have cgroup.kill, which the root has not."""
    children = (entry for entry in sorted(mount.iterdir()) if entry.is_dir())
    first = next(children, None)
    return first is None or (first / "cgroup.kill").exists()


def _holds(scene: Scene) -> tuple[bool | None, str]:
    """What the running agent says of its kernel tier."""
    for tier in (scene.node or {}).get("tiers", ()):
        if tier.get("name") == CONTROLLER:
            return tier.get("why") == HOLDS, str(tier.get("why"))
    return None, ""


def _open(
    scene: Scene, tree: CgroupTree, dmem: DmemController, capacity: Mapping[str, int]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The regions that sessions and machines may have, though the agent closed them."""
    state = scene.config.state.directory
    closed = set(capacity)
    if (state / RECORD).exists():
        closed = set(OutsideCgroups(tree, dmem, state, scene.clock.boot_id).regions())
    for path in CLOSED:
        ref = None if path in scene.config.closure.exempt else tree.resolve(path)
        if ref is None:
            continue
        try:
            limits = dmem.limits(ref)
        except (OSError, OutsideFault):
            continue  # it went away
        regions = tuple(sorted(region for region in closed if limits.get(region) != 0))
        if regions:
            yield path, regions


def _used(directory: Path) -> float:
    try:
        told = os.statvfs(directory)
    except OSError:
        return 0.0
    return 1 - told.f_bavail / told.f_blocks if told.f_blocks else 0.0


def _leftovers(shm: Path, proc: Path) -> int:
    """Files of GPU libraries there, of users that have no process at all."""
    try:
        files = [entry.lstat() for entry in shm.iterdir() if _GPU_FILES.match(entry.name)]
        living = {entry.stat().st_uid for entry in proc.iterdir() if entry.name.isdecimal()}
    except OSError:
        return 0  # something ended meanwhile: the next look tells
    return sum(status.st_uid not in living for status in files)
