"""What can be asked of the ledger. Every list is bounded by a limit or by what is live."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    exists,
    func,
    or_,
    select,
)

from nodeagent.domain.clock import SECOND_NS, Clock
from nodeagent.domain.lease import HeldSlice, HolderKind, Lease, LeaseState, SliceState
from nodeagent.domain.quota import Holding, Use
from nodeagent.domain.records import Counts, Drain, EffectRecord, EffectState, Event, Registered, Remembered
from nodeagent.ledger import rows
from nodeagent.ledger.sidecar import Mark, Sidecar, marks, read
from nodeagent.ledger.statements import Row, Statement
from nodeagent.ledger.tables import (
    NOT_ENDED,
    NOT_FREE,
    accounts,
    anchors,
    devices,
    drains,
    effects,
    events,
    high_water,
    leases,
    member,
    request_keys,
    slices,
)

REMEMBERED_NS = 24 * 3600 * SECOND_NS  # a request id is known for a day
MOST = 1000  # rows in one answer
_LIVE = select(leases.c.id).where(NOT_ENDED)  # by its index: SQLite would scan the history for their order
_ANCHOR = (anchors.c.kind.label("anchor_kind"), anchors.c.armed, anchors.c.deadline_ns)


def _slices() -> Select[Any]:
    return (
        select(slices, leases.c.uid, *_ANCHOR)
        .join(leases, leases.c.id == slices.c.lease)
        .join(anchors, anchors.c.lease == slices.c.lease)
    )


def _leases() -> Select[Any]:
    rest = (
        anchors.c.ttl_seconds,
        anchors.c.pid,
        anchors.c.start_time,
        anchors.c.cgroup.label("anchor_cgroup"),
        anchors.c.inode,
        anchors.c.container,
    )
    return select(leases, *_ANCHOR, *rest).join(anchors, anchors.c.lease == leases.c.id).order_by(leases.c.id)


# Compiled once, with *of* and its like for what changes.
_OF = select(member("of"))
_LEASE = Statement(_leases().where(leases.c.id == bindparam("of")))
_LIVE_LEASES = Statement(_leases().where(leases.c.id.in_(_LIVE)))
_LIVE_IN = Statement(_leases().where(leases.c.id.in_(_LIVE), leases.c.state == bindparam("state")))
_SLICES_OF = Statement(_slices().where(slices.c.lease.in_(_OF)).order_by(slices.c.lease, slices.c.ordinal))
_HELD = Statement(_slices().where(NOT_FREE).order_by(slices.c.device, slices.c.id))
_PRESENT = _LIVE.union(select(slices.c.lease).where(NOT_FREE))
_PRESENT_IDS = Statement(_PRESENT)
_LEASES_OF = Statement(_leases().where(leases.c.id.in_(_OF)))
_PRESENT_LEASES = Statement(_leases().where(leases.c.id.in_(_PRESENT)))
_EVERY_JOURNAL = select(effects).where(effects.c.lease.in_(_OF)).order_by(effects.c.id)
_JOURNALS = Statement(_EVERY_JOURNAL)
_JOURNALS_OF = Statement(_EVERY_JOURNAL.where(effects.c.kind.in_(select(member("kinds")))))
_JOURNAL = Statement(select(effects).where(effects.c.lease == bindparam("of")).order_by(effects.c.id))
_DRAINS = Statement(select(drains).order_by(drains.c.device))
_HIGH_WATER = Statement(select(high_water.c.lease))
_REMEMBERED = Statement(
    select(request_keys.c.lease, request_keys.c.digest).where(
        request_keys.c.uid == bindparam("uid"),
        request_keys.c.request_id == bindparam("request_id"),
        request_keys.c.boot_id == bindparam("boot"),
        request_keys.c.at_ns > bindparam("after_ns"),
    )
)
_COUNTS = Statement(
    select(func.count(), func.count().filter(leases.c.state == LeaseState.QUEUED)).where(
        NOT_ENDED, leases.c.charged_uid == bindparam("uid")
    )
)
_NUMBER = func.count().label("number")
_STATES = Statement(select(leases.c.state, _NUMBER).where(leases.c.id.in_(_LIVE)).group_by(leases.c.state))
_UNCLEAN = Statement(
    select(func.count(slices.c.lease.distinct()))
    .join(leases, leases.c.id == slices.c.lease)
    .where(NOT_FREE, slices.c.state == SliceState.QUARANTINED, leases.c.charged_uid == bindparam("uid"))
)

_HOLDINGS = Statement(
    select(
        leases.c.id,
        leases.c.uid,
        leases.c.gid,
        leases.c.holder_kind,
        accounts.c.account,
        func.sum(slices.c.vram_bytes).label("vram_bytes"),
        func.coalesce(func.sum(slices.c.cu_count).filter(slices.c.shared == 0), 0).label("cus"),
        func.sum(slices.c.queue_slots).label("queue_slots"),
    )
    .join(leases, leases.c.id == slices.c.lease)
    .outerjoin(accounts, accounts.c.lease == leases.c.id)
    .where(NOT_FREE)
    .group_by(leases.c.id)
)
_ACCOUNT = Statement(select(accounts.c.account).where(accounts.c.lease == bindparam("of")))


class Queries(ABC):
    """Reads: `Ledger` (each call a consistent snapshot) and `Transaction` (sees its own writes) have them."""

    _clock: Clock

    @abstractmethod
    def _connection(self) -> AbstractContextManager[Connection]:
        """A connection within a transaction; SQLite's errors come out of it as the agent's own."""

    def held(self) -> tuple[HeldSlice, ...]:
        """Every slice that is not free, by device."""
        return tuple(rows.slice_of(row) for row in self._all(_HELD))

    def quarantined(self) -> tuple[HeldSlice, ...]:
        wanted = _slices().where(NOT_FREE, slices.c.state == SliceState.QUARANTINED).order_by(slices.c.id)
        return tuple(rows.slice_of(row) for row in self._all(Statement(wanted)))

    def unfinished(self) -> frozenset[int]:
        """Leases that failed and of which something outside the ledger may be left."""
        # As a subquery: joined, SQLite goes through the journals of all leases that ever were, at every look.
        failed = select(leases.c.id).where(leases.c.state == LeaseState.FAILED)
        left = select(effects.c.lease).where(effects.c.lease.in_(failed))
        wanted = left.where(effects.c.state != EffectState.UNDONE)
        return frozenset(row.lease for row in self._all(Statement(wanted.distinct())))

    def lease(self, lease_id: int) -> Lease | None:
        return next(iter(self._read_leases(_LEASE, of=lease_id)), None)

    def some(self, of: Collection[int]) -> dict[int, Lease]:
        """The leases of these ids, as far as there are such."""
        found = self._read_leases(_LEASES_OF, of=json.dumps(list(of))) if of else ()
        return {lease.id: lease for lease in found}

    def all_present(self) -> dict[int, Lease]:
        """Every lease that has not ended, or holds a slice still."""
        return {lease.id: lease for lease in self._read_leases(_PRESENT_LEASES)}

    def leases(
        self,
        *,
        state: Collection[LeaseState] | None = None,
        uid: int | None = None,
        devices: Collection[str] | None = None,
        holder: tuple[HolderKind, str] | None = None,
        also: Collection[int] = (),
        since: float | None = None,
        ended_since: float | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> tuple[Lease, ...]:
        """At most *limit* leases of ids above *after*, which is the cursor, lowest first.

        *since*, *ended_since*: wall-clock seconds; only those created, or ended, then or later. *also*: ids
        that count as *holder*'s.
        """
        wanted: list[ColumnElement[bool]] = [leases.c.id > after]
        if state is not None:
            wanted.append(leases.c.state.in_(state))
        if uid is not None:
            wanted.append(leases.c.uid == uid)
        if devices is not None:
            wanted.append(exists().where(slices.c.lease == leases.c.id, slices.c.device.in_(devices)))
        if holder is not None:
            held = and_(leases.c.holder_kind == holder[0], leases.c.holder_id == holder[1])
            wanted.append(or_(held, leases.c.id.in_(also)) if also else held)
        if since is not None:
            wanted.append(leases.c.created_at >= since)
        if ended_since is not None:
            wanted.append(leases.c.ended_at >= ended_since)
        ids = select(leases.c.id).where(*wanted).order_by(leases.c.id).limit(_bounded(limit))
        with self._connection() as connection:
            found = [row.id for row in Statement(ids).send(connection, {}).rows]
            known = self._in_memory(found)
            rest = json.dumps([lease_id for lease_id in found if lease_id not in known])
            every = {**known, **{lease.id: lease for lease in _read(connection, _LEASES_OF, of=rest)}}
        return tuple(every[lease_id] for lease_id in found)

    def _in_memory(self, of: Collection[int]) -> Mapping[int, Lease]:
        """Those of these leases that need not be read."""
        return {}

    def live(self, state: LeaseState | None = None) -> tuple[Lease, ...]:
        """Every lease that has not ended, queued ones included; or those of them in *state*."""
        return self._read_leases(_LIVE_LEASES) if state is None else self._read_leases(_LIVE_IN, state=state)

    def states(self) -> dict[LeaseState, int]:
        """How many leases have not ended, by state."""
        return {LeaseState(row.state): int(row.number) for row in self._all(_STATES)}

    def present(self) -> frozenset[int]:
        """Leases that have not ended, or hold a slice still."""
        return frozenset(row[0] for row in self._all(_PRESENT_IDS))

    def effects(self, lease_id: int) -> tuple[EffectRecord, ...]:
        """A lease's journal, in the order in which it was planned."""
        return tuple(rows.effect_of(row) for row in self._all(_JOURNAL, of=lease_id))

    def journals(
        self, of: Iterable[int], kinds: Iterable[str] | None = None
    ) -> dict[int, tuple[EffectRecord, ...]]:
        """What `effects` gives, by lease, in one query; only entries of *kinds*, if given."""
        found: dict[int, list[EffectRecord]] = {lease: [] for lease in of}
        if not found:
            return {}
        wanted, given = _JOURNALS, {"of": json.dumps(list(found))}
        if kinds is not None:
            wanted, given = _JOURNALS_OF, {**given, "kinds": json.dumps(list(kinds))}
        for row in self._all(wanted, **given):
            found[row.lease].append(rows.effect_of(row))
        return {lease: tuple(journal) for lease, journal in found.items()}

    def sidecar(self, lease_id: int) -> Sidecar | None:
        """What is kept of the lease outside the ledger; None where it is queued, preparing or over."""
        with self._connection() as connection:
            return read(connection, lease_id, self._clock.boot_id)

    def sidecar_marks(self) -> dict[int, Mark]:
        """By lease, for those that shall have a sidecar, the mark of an up-to-date one."""
        with self._connection() as connection:
            return marks(connection, self._clock.boot_id)

    def high_water(self) -> int:
        """The highest lease id that was ever in this ledger."""
        return next((int(row.lease) for row in self._all(_HIGH_WATER)), 0)

    def events(
        self,
        after: int = 0,
        limit: int = 100,
        lease: int | None = None,
        uid: int | None = None,
        *,
        newest: bool = False,
    ) -> tuple[Event, ...]:
        """Events of ids above *after*, oldest first; *uid*: its own acts, and all that befell its leases.

        The first *limit* of them, or with *newest* the last.
        """
        order = events.c.id.desc() if newest else events.c.id
        wanted = select(events).where(events.c.id > after).order_by(order).limit(_bounded(limit))
        if lease is not None:
            wanted = wanted.where(events.c.lease == lease)
        if uid is not None:
            theirs = exists().where(leases.c.id == events.c.lease, leases.c.uid == uid)
            wanted = wanted.where(or_(events.c.uid == uid, theirs))
        found = tuple(rows.event_of(row) for row in self._all(Statement(wanted)))
        return found[::-1] if newest else found

    def lost(self, lease_id: int) -> bool:
        """Whether the lease ended because it lost a device."""
        told = select(events.c.id).where(events.c.lease == lease_id, events.c.kind == "lost").limit(1)
        return bool(list(self._all(Statement(told))))

    def drains(self) -> tuple[Drain, ...]:
        """Every drain, also one whose time is over: `undrain` ends it."""
        return tuple(rows.drain_of(row) for row in self._all(_DRAINS))

    def registered(self) -> tuple[Registered, ...]:
        """Every device ever seen, in its newest epoch."""
        newer = devices.alias()
        wanted = (
            select(devices)
            .where(~exists().where(newer.c.key == devices.c.key, newer.c.epoch > devices.c.epoch))
            .order_by(devices.c.key)
        )
        return tuple(
            Registered(
                device=row.key,
                epoch=row.epoch,
                pool=row.pool,
                cus=row.cus,
                queue_slots=row.queue_slots,
                compute_partition=row.compute_partition,
                memory_partition=row.memory_partition,
            )
            for row in self._all(Statement(wanted))
        )

    def remembered(self, uid: int, request_id: str) -> Remembered | None:
        """What a request id got, in this boot and the last 24 h: a lease of an older boot is void anyway."""
        found = self._all(
            _REMEMBERED,
            uid=uid,
            request_id=request_id,
            boot=self._clock.boot_id,
            after_ns=self._clock.boot_ns() - REMEMBERED_NS,
        )
        return next((Remembered(row.lease, row.digest) for row in found), None)

    def counts(self, charged_uid: int) -> Counts:
        """How many leases use up the limits of *charged_uid*."""
        with self._connection() as connection:
            every, waiting = _COUNTS.send(connection, {"uid": charged_uid}).one()
            quarantined = _UNCLEAN.send(connection, {"uid": charged_uid}).scalar()
        return Counts(live=every - waiting, queued=waiting, quarantined=quarantined)

    def holdings(self) -> tuple[Holding, ...]:
        """What each lease holds that has a slice which is not free: also one that ended unclean."""
        return tuple(
            Holding(
                row.id,
                row.uid,
                row.gid,
                HolderKind(row.holder_kind),
                row.account,
                Use(1, row.vram_bytes, row.cus, row.queue_slots),
            )
            for row in self._all(_HOLDINGS)
        )

    def account(self, lease_id: int) -> str | None:
        """Slurm's account of a job's lease."""
        return next((str(row.account) for row in self._all(_ACCOUNT, of=lease_id)), None)

    def _all(self, wanted: Statement, **given: object) -> list[Row]:
        with self._connection() as connection:
            return wanted.send(connection, given).rows

    def _read_leases(self, wanted: Statement, **given: object) -> tuple[Lease, ...]:
        with self._connection() as connection:
            return _read(connection, wanted, **given)


def _read(connection: Connection, wanted: Statement, **given: object) -> tuple[Lease, ...]:
    found = wanted.send(connection, given).rows
    mine: dict[int, list[HeldSlice]] = {row.id: [] for row in found}
    if mine:
        for row in _SLICES_OF.send(connection, {"of": json.dumps(list(mine))}).rows:
            mine[row.lease].append(rows.slice_of(row))
    return tuple(rows.lease_of(row, tuple(mine[row.id])) for row in found)


def _bounded(limit: int) -> int:
    return max(0, min(limit, MOST))
