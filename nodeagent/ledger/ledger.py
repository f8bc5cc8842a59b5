"""The ledger: what is held, by whom, until when. Signatures first; the body follows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from nodeagent.domain.clock import Clock
from nodeagent.domain.device import Device, Pool
from nodeagent.domain.guarantee import Guarantee
from nodeagent.domain.lease import (
    Anchor,
    HeldSlice,
    Holder,
    HolderKind,
    Lease,
    LeaseState,
    PlacedSlice,
    SliceState,
)
from nodeagent.domain.records import (
    Counts,
    Drain,
    EffectRecord,
    EffectState,
    Event,
    Json,
    LedgerHealth,
    Registered,
    Remembered,
)
from nodeagent.domain.request import Request


class Queries:
    """Reads: `Ledger` (each call a consistent snapshot) and `Transaction` (sees its own writes) have them."""

    def held(self) -> tuple[HeldSlice, ...]:
        raise NotImplementedError

    def quarantined(self) -> tuple[HeldSlice, ...]:
        raise NotImplementedError

    def lease(self, lease_id: int) -> Lease | None:
        raise NotImplementedError

    def leases(
        self,
        *,
        state: Collection[LeaseState] | None = None,
        uid: int | None = None,
        device: str | None = None,
        holder: tuple[HolderKind, str] | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> tuple[Lease, ...]:
        raise NotImplementedError

    def live(self) -> tuple[Lease, ...]:
        raise NotImplementedError

    def effects(self, lease_id: int) -> tuple[EffectRecord, ...]:
        raise NotImplementedError

    def events(self, after: int = 0, limit: int = 100, lease: int | None = None) -> tuple[Event, ...]:
        raise NotImplementedError

    def drains(self) -> tuple[Drain, ...]:
        raise NotImplementedError

    def registered(self) -> tuple[Registered, ...]:
        """Every device's newest epoch."""
        raise NotImplementedError

    def remembered(self, uid: int, request_id: str) -> Remembered | None:
        """What a request id got in this boot and the last 24 h."""
        raise NotImplementedError

    def counts(self, uid: int) -> Counts:
        raise NotImplementedError


class Transaction(Queries):
    """All writes."""

    def register(self, devices: Sequence[Device], pools: Sequence[Pool]) -> None:
        raise NotImplementedError

    def forget_requests(self, before_ns: int) -> int:
        raise NotImplementedError

    def open_lease(
        self,
        *,
        state: LeaseState,
        holder: Holder,
        gid: int,
        anchor: Anchor,
        request: Request,
        request_id: str | None,
        digest: str,
        placed: Sequence[PlacedSlice] = (),
        wait_until_ns: int | None = None,
    ) -> int:
        raise NotImplementedError

    def place(self, lease_id: int, placed: Sequence[PlacedSlice]) -> None:
        raise NotImplementedError

    def move_lease(self, lease_id: int, to: LeaseState, *, reason: str | None = None) -> None:
        raise NotImplementedError

    def move_slices(
        self,
        lease_id: int,
        to: SliceState,
        *,
        only: Collection[int] | None = None,
        reason: str | None = None,
    ) -> None:
        raise NotImplementedError

    def activate(
        self,
        lease_id: int,
        *,
        guarantee: Guarantee,
        environment: Mapping[str, str | None],
        cgroup: str | None,
        anchor: Anchor,
    ) -> None:
        raise NotImplementedError

    def set_anchor(self, lease_id: int, anchor: Anchor) -> None:
        raise NotImplementedError

    def set_guarantee(self, lease_id: int, guarantee: Guarantee) -> None:
        raise NotImplementedError

    def plan_effect(self, lease_id: int, kind: str, arguments: Mapping[str, Json]) -> EffectRecord:
        raise NotImplementedError

    def mark_effect(
        self, effect_id: int, state: EffectState, evidence: Mapping[str, Json] | None = None
    ) -> None:
        raise NotImplementedError

    def event(
        self,
        kind: str,
        *,
        uid: int | None,
        lease: int | None = None,
        device: str | None = None,
        reason: str | None = None,
        data: Mapping[str, Json] | None = None,
    ) -> int:
        raise NotImplementedError

    def drain(self, device: str, *, reason: str | None, uid: int, until_ns: int | None) -> None:
        raise NotImplementedError

    def undrain(self, device: str) -> bool:
        """False: it was not drained."""
        raise NotImplementedError

    def prune(self, *, leases_before: float, max_events: int, max_event_bytes: int) -> int:
        """Delete at most one batch of what is over; returns how many rows: call it until 0."""
        raise NotImplementedError


class Ledger(Queries):
    """The one owner of the database."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock

    def open(self, *, floor: int = 0) -> None:
        """Migrate, check and open, after the fork. Never raises for a damaged database: see `health`."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def health(self) -> LedgerHealth:
        raise NotImplementedError

    def check(self) -> tuple[str, ...]:
        """Problems found; any makes the ledger read-only."""
        raise NotImplementedError

    @contextmanager
    def write(self, *, release: bool = False) -> Iterator[Transaction]:
        """One transaction. *release*: it serves leases that exist, and may use the disk's reserve.

        Raises:
            LedgerUnavailable, LedgerConflict, IllegalMove
        """
        raise NotImplementedError
        yield
