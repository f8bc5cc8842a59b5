"""Checks of who is on the GPUs, and of VRAM that is nobody's."""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.domain.doctor.check import Verdict, check, either, fail, unseen, warn

AREA = "usage"
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class User:
    """A process that has a GPU open. *leased*: it is in a lease's cgroup, None where that cannot be told."""

    pid: int
    name: str
    vram_bytes: int
    queues: int
    leased: bool | None
    evicted_ms: int = 0
    state: str = "S"  # of /proc/<pid>/stat


@dataclass(frozen=True, slots=True)
class Memory:
    """A pool's VRAM in bytes: *known* is what processes hold, *idle* its baseline, if there is one."""

    pool: str
    used: int
    known: int
    idle: int | None
    total: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Who uses what. *complete*: whether every process could be looked at, which takes root."""

    users: tuple[User, ...] = ()
    pools: tuple[Memory, ...] = ()
    tolerance: int = 256 * _MIB  # release.leak_tolerance_bytes
    complete: bool = True
    blind: tuple[str, ...] = ()  # devices whose waves are not counted, where idle leases are looked for


@check(
    Usage,
    AREA,
    fix="drain the device; find who has a buffer of it open (docs/watch.md); else reload amdgpu, or reboot",
    issue="ROCm/legacy-rocm-build#785",
)
def vram_baseline(usage: Usage) -> Verdict:
    """No card uses more VRAM than its idle baseline and what processes hold."""
    offenders = [
        f"{one.pool}: {(one.used - one.known - (one.idle or 0)) // _MIB} MiB are nobody's"
        for one in usage.pools
        if one.used - one.known - (one.idle or 0) > usage.tolerance
    ]
    if offenders and not usage.complete:
        return unseen("only root sees what all processes hold")
    return either(offenders, warn, f"within {usage.tolerance // _MIB} MiB")


@check(
    Usage,
    AREA,
    fix="end it, lease it (gpulease adopt PID), or keep others out (devices.gate, docker's plugin)",
    issue="ROCm/k8s-device-plugin#202",
)
def foreign_users(usage: Usage) -> Verdict:
    """Nobody uses a GPU outside a lease."""
    foreign = [
        f"pid {one.pid} ({one.name}), {one.vram_bytes // _MIB} MiB"
        for one in usage.users
        if one.leased is False and (one.vram_bytes or one.queues)
    ]
    if not foreign and any(one.leased is None for one in usage.users):
        return unseen("cannot tell which processes are in leases")
    return either(foreign, warn, "nobody")


@check(
    Usage,
    AREA,
    fix="stop it before a partition change or a driver reload: its open /dev/kfd makes them fail as busy",
    issue="ROCm/legacy-rocm-build#4411",
)
def idle_openers(usage: Usage) -> Verdict:
    """No process outside leases keeps /dev/kfd open without using it."""
    idle = [
        f"pid {one.pid} ({one.name})"
        for one in usage.users
        if one.leased is not True and not one.vram_bytes and not one.queues
    ]
    return either(idle, warn, "none")


@check(
    Usage,
    AREA,
    fix="drain its device; what does not end in minutes takes a reboot: dmesg says where it hangs",
    issue="ROCm/legacy-rocm-build#195",
)
def stuck_processes(usage: Usage) -> Verdict:
    """No process with a GPU hangs in the kernel, where no signal reaches it."""
    stuck = [f"pid {one.pid} ({one.name})" for one in usage.users if one.state == "D"]
    return either(stuck, fail, "none")


@check(
    Usage,
    AREA,
    fix="grant less: VRAM is oversubscribed, and the kernel stops whole programs to move their memory about",
    issue="ROCm/legacy-rocm-build#1301",
)
def evictions(usage: Usage) -> Verdict:
    """No program was stopped to make room in VRAM for another."""
    evicted = [f"pid {one.pid} ({one.name}): {one.evicted_ms} ms" for one in usage.users if one.evicted_ms]
    return either(evicted, warn, "none")


@check(
    Usage,
    AREA,
    fix="let leases end by time there (defaults.max_ttl_seconds): with queues on these devices none is idle",
    issue="ROCm/TheRock#1878",
)
def idle_measured(usage: Usage) -> Verdict:
    """Where idle leases are looked for (idle.after_seconds), the driver counts the waves of every device."""
    return either(usage.blind, warn, "it does, or they are not looked for")


CHECKS = (vram_baseline, foreign_users, idle_openers, stuck_processes, evictions, idle_measured)
