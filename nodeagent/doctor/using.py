"""Gathers who is on the GPUs: KFD's and DRM's figures, and which of these processes are in leases."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator

from nodeagent.adapters.container_files import NOTES
from nodeagent.adapters.container_processes import LeaseMounts
from nodeagent.adapters.drm import vram_used
from nodeagent.adapters.fdinfo import drm_clients
from nodeagent.adapters.kfd_usage import PROC as KFD_PROCESSES
from nodeagent.adapters.kfd_usage import kfd_use
from nodeagent.adapters.processes import stat_of
from nodeagent.doctor.scene import Scene
from nodeagent.domain.baseline import Baseline
from nodeagent.domain.doctor.usage import Memory, Usage, User
from nodeagent.domain.errors import LedgerUnavailable
from nodeagent.domain.idle import uncounted
from nodeagent.domain.watch import KfdUse
from nodeagent.ledger.boot_file import BootFile
from nodeagent.service.owners import owners
from nodeagent.wiring.state import BASELINES


def usage(scene: Scene) -> Usage:
    """Every process that has KFD open, and every card's VRAM against what is known of it."""
    uses: defaultdict[int, list[KfdUse]] = defaultdict(list)
    for use in kfd_use(scene.tree):
        uses[use.pid].append(use)
    leased = _leased(scene)
    pids = scene.tree.numbered(KFD_PROCESSES)
    return Usage(
        users=tuple(_user(scene, pid, uses[pid], leased) for pid in pids),
        pools=tuple(_pools(scene, [one for each in uses.values() for one in each])),
        tolerance=scene.config.release.leak_tolerance_bytes,
        complete=scene.root_user,
        blind=tuple(_blind(scene)) if scene.config.idle.after_seconds else (),
    )


def _blind(scene: Scene) -> Iterator[str]:
    for device in scene.inventory.devices:
        if why := uncounted(device):
            yield f"{device.key}: {why}"


def _user(scene: Scene, pid: int, uses: list[KfdUse], leased: Callable[[int], bool | None]) -> User:
    process = stat_of(pid, scene.at("/proc"))
    return User(
        pid=pid,
        name=scene.text(f"proc/{pid}/comm") or "?",
        vram_bytes=sum(use.vram_bytes for use in uses),
        queues=sum(len(use.queues) for use in uses),
        leased=leased(pid),
        evicted_ms=max((use.evicted_ms for use in uses), default=0),
        state=process.state if process else "?",
    )


def _leased(scene: Scene) -> Callable[[int], bool | None]:
    """Whether a process is in a lease, by the ledger's own record; None where that cannot be read."""
    if scene.ledger is None:
        return lambda pid: None
    mounted = LeaseMounts(NOTES / scene.stem, proc=scene.at("/proc"))
    try:
        known = owners(scene.ledger, scene.cgroups, scene.clock, mounted.of)
    except LedgerUnavailable:
        return lambda pid: None

    def leased(pid: int) -> bool | None:
        identity = known.of(pid)
        return identity is not None and identity.owner is not None

    return leased


def _pools(scene: Scene, uses: list[KfdUse]) -> Iterator[Memory]:
    """What each card uses, and the larger of what KFD and DRM know of: KFD's buffers may be in both."""
    kept = scene.config.state.directory / BASELINES
    baselines = BootFile(kept, scene.clock, Baseline.of).read() if os.access(kept, os.R_OK) else {}
    by_kfd: defaultdict[str, int] = defaultdict(int)
    for use in uses:
        device = scene.inventory.of_gpu(use.gpu_id)
        if device is not None:
            by_kfd[device.pci] += use.vram_bytes
    by_drm: defaultdict[str, int] = defaultdict(int)
    for client in drm_clients(scene.at("/proc")):
        by_drm[client.pci or ""] += client.resident_bytes
    for pci in sorted({one.pci for one in scene.inventory.devices if one.pci}):
        used = vram_used(scene.tree, pci)
        if not isinstance(used, int):
            continue
        idle = [one.idle_bytes for pool, one in baselines.items() if pool.partition("#")[0] == pci]
        total = sum(one.vram_bytes for one in scene.inventory.pools if one.key.partition("#")[0] == pci)
        known = max(by_kfd[pci], by_drm[pci])
        yield Memory(pci, used, known, sum(idle) if idle else None, total)
