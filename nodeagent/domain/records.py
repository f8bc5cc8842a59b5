"""What the ledger says beside leases: effects, events, drains, request ids, counts, limits, its health.

``*_ns`` is boot time in ns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None


# Kinds of events that a program in a loop, or a thing that is broken, causes again and again.
FOLDED = frozenset(
    {
        "refused",
        "renewed",
        "effect_restored",
        "limit_restored",
        "closure_restored",
        "foreign_user",
        "container_stopped",
        "gate_leftover",
        "kernel_fault",
        "link_degraded",
        "link_restored",
    }
)


class EffectState(StrEnum):
    """How far one change outside the ledger has come."""

    PLANNED = "planned"  # journaled, maybe done: the agent may have died right after the act
    APPLIED = "applied"
    VERIFIED = "verified"  # read back
    UNDONE = "undone"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class EffectRecord:
    """One entry of the effects journal; a lease's entries are undone in reverse order of their ids."""

    id: int
    lease: int
    kind: str
    arguments: Mapping[str, Json]
    state: EffectState
    evidence: Mapping[str, Json] | None
    at_ns: int  # when it reached its state


@dataclass(frozen=True, slots=True)
class Event:
    """Who did what, when and why. Ids grow and are never reused, so the last one seen is a cursor.

    Of the kinds that repeat, the same again takes the earlier one's place: with a new id, and *count*.
    """

    id: int
    kind: str
    at: float  # wall clock, for display only
    boot_ns: int
    boot_id: str
    uid: int | None = None  # None: the agent itself
    lease: int | None = None
    device: str | None = None
    reason: str | None = None
    data: Mapping[str, Json] | None = None
    count: int = 1
    first_at: float | None = None  # wall clock; None: then


@dataclass(frozen=True, slots=True)
class Drain:
    """An administrator's word that a device, or the whole node (`drains.NODE`), is granted no more."""

    device: str
    reason: str | None
    uid: int
    until_ns: int | None  # boot time of *boot_id*; None: until undrained
    boot_id: str
    at: float  # wall clock
    until_at: float | None = None  # wall clock: for a later boot


@dataclass(frozen=True, slots=True)
class Counts:
    """How many leases a uid has now, for its limits."""

    live: int  # neither queued nor ended
    queued: int
    quarantined: int = 0  # ended, but a slice of it is not proved clean


@dataclass(frozen=True, slots=True)
class Remembered:
    """The lease that a request id got, and the digest of the body that came with it."""

    lease: int
    digest: str


@dataclass(frozen=True, slots=True)
class Registered:
    """A device's newest epoch as the ledger's limits know it."""

    device: str
    epoch: int
    pool: str
    cus: int
    queue_slots: int
    compute_partition: str | None
    memory_partition: str | None


@dataclass(frozen=True, slots=True)
class LedgerHealth:
    """Whether grants can be written now; *reason* says why not. Releases may work even then."""

    writable: bool
    reason: str | None = None
