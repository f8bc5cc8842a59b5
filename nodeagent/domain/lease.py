"""Leases and slices: their states, and the only moves between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from nodeagent.domain.container import Container
from nodeagent.domain.cuset import CuSet
from nodeagent.domain.guarantee import Compute, Guarantee
from nodeagent.domain.request import Request, Shape


class LeaseState(StrEnum):
    QUEUED = "queued"
    CANCELLED = "cancelled"
    PREPARING = "preparing"
    ACTIVE = "active"
    LOST = "lost"
    RELEASING = "releasing"
    RELEASED = "released"
    FAILED = "failed"  # ended, but a slice of it is quarantined


class SliceState(StrEnum):
    HELD = "held"
    CLEANING = "cleaning"
    QUARANTINED = "quarantined"
    FREE = "free"


LEASE_MOVES: Mapping[LeaseState, frozenset[LeaseState]] = {
    LeaseState.QUEUED: frozenset({LeaseState.PREPARING, LeaseState.CANCELLED}),
    LeaseState.PREPARING: frozenset({LeaseState.ACTIVE, LeaseState.RELEASING}),
    LeaseState.ACTIVE: frozenset({LeaseState.LOST, LeaseState.RELEASING}),
    LeaseState.LOST: frozenset({LeaseState.RELEASING}),
    LeaseState.RELEASING: frozenset({LeaseState.RELEASED, LeaseState.FAILED}),
    LeaseState.RELEASED: frozenset(),
    LeaseState.FAILED: frozenset(),
    LeaseState.CANCELLED: frozenset(),
}
SLICE_MOVES: Mapping[SliceState, frozenset[SliceState]] = {
    SliceState.HELD: frozenset({SliceState.CLEANING}),
    SliceState.CLEANING: frozenset({SliceState.FREE, SliceState.QUARANTINED}),
    SliceState.QUARANTINED: frozenset({SliceState.FREE}),
    SliceState.FREE: frozenset(),
}
ENDED = frozenset({LeaseState.RELEASED, LeaseState.FAILED, LeaseState.CANCELLED})


class HolderKind(StrEnum):
    SLURM = "slurm"
    DOCKER = "docker"
    PROCESS = "process"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lease: ``slurm:<job>``, ``docker:<container>``, ``process:<pid>``, ``client:<key>``."""

    kind: HolderKind
    id: str
    uid: int


class AnchorKind(StrEnum):
    """What proves that the holder lives."""

    TTL = "ttl"  # renewals
    PROCESS = "process"  # one process, by pid and start time
    CGROUP = "cgroup"  # a populated cgroup: the lease's own, or one given
    EXTERNAL = "external"  # ended only by a caller or a reboot, never by an empty cgroup
    CONTAINER = "container"  # a container, whoever started it: see `domain.container`


@dataclass(frozen=True, slots=True)
class Anchor:
    """Armed once it was seen alive; unarmed it dies at *deadline_ns* (boot time)."""

    kind: AnchorKind
    armed: bool = False
    deadline_ns: int | None = None  # ttl: end unless renewed; others: start deadline while unarmed
    ttl_seconds: int | None = None
    pid: int | None = None
    start_time: int | None = None  # clock ticks since boot, /proc/<pid>/stat field 22
    cgroup: str | None = None  # path below the cgroup2 mount
    inode: int | None = None
    container: Container | None = None


@dataclass(frozen=True, slots=True)
class PlacedSlice:
    """One slice as placement chose it; nothing is held yet."""

    device: str
    epoch: int
    pool: str
    cus: CuSet
    shared: bool  # the CUs are the device's shared set, which other shared slices have too
    exclusive: bool  # nobody may join on this device
    whole: bool  # all CUs of the device: no mask
    cu_requested: int
    effective_cus: int
    vram_bytes: int
    queue_slots: int
    shape: Shape


@dataclass(frozen=True, slots=True)
class HeldSlice:
    """A slice of the ledger that is not free."""

    id: int
    lease: int
    uid: int
    placed: PlacedSlice
    state: SliceState
    ends_ns: int | None = None  # boot time, where the lease has a known end


@dataclass(frozen=True, slots=True)
class Lease:
    """One holder's right to one or more slices until it ends. Its id is its fencing token."""

    id: int
    state: LeaseState
    holder: Holder
    anchor: Anchor
    request: Request
    request_id: str | None
    boot_id: str
    created_ns: int  # boot time
    created_at: float  # wall clock, for display only
    slices: tuple[HeldSlice, ...] = ()
    guarantee: Guarantee = Guarantee()
    environment: Mapping[str, str | None] | None = None
    cgroup: str | None = None  # absolute path of the lease's own cgroup, where it has one
    ended_at: float | None = None
    reason: str | None = None
    wait_until_ns: int | None = None  # queued: the boot time at which it is cancelled
    gid: int | None = None  # of the holder

    @property
    def observed(self) -> bool:
        """Whether it was granted without anything to hold: see `service.observing`."""
        return self.environment is not None and self.guarantee.compute is Compute.NONE
