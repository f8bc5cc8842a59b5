"""Writes beside leases: effects, events, drains, request ids; and what bounds the growth of it all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import bindparam, delete, exists, func, insert, or_, select, update
from sqlalchemy.dialects.sqlite import insert as upsert

from nodeagent.domain.clock import SECOND_NS
from nodeagent.domain.errors import UnknownThing
from nodeagent.domain.records import FOLDED, Drain, EffectRecord, EffectState, Json
from nodeagent.ledger import rows
from nodeagent.ledger.queries import Queries
from nodeagent.ledger.statements import Result, Statement
from nodeagent.ledger.tables import NOT_FREE, drains, effects, events, leases, request_keys, slices

# Leases of one uid, some 60 MB: no user's loop may fill the disk in the time that ended leases stay.
MOST_ENDED = 20_000
BATCH = 500  # rows deleted at once, so that no transaction is long
FOLD_NS = 600 * SECOND_NS  # how long after an event the same again is no other
FOLD_AMONG = 200  # of the newest events, among which the same is looked for
MOST_DATA = 8192  # characters of one event's data
_EVENT_BYTES = 200  # about what a row takes without its texts

# Made once, as those of queries.py.
_PLAN = Statement(insert(effects).returning(effects.c.id))
_MARK = Statement(update(effects).where(effects.c.id == bindparam("of")))
_TELL = Statement(insert(events).returning(events.c.id))
_UNTELL = Statement(delete(events).where(events.c.id == bindparam("of")))
# Of the newest alone: what came long ago is not looked through for each.
_RECENT = select(func.max(events.c.id) - FOLD_AMONG).scalar_subquery()
_SAME = Statement(
    select(events.c.id, events.c.count, events.c.first_at)
    .where(
        events.c.id > _RECENT,
        events.c.boot_ns > bindparam("since_ns"),
        *(
            events.c[name].is_not_distinct_from(bindparam(name))
            for name in ("kind", "uid", "lease", "device", "reason", "data", "boot_id")
        ),
    )
    .order_by(events.c.id.desc())
    .limit(1)
)


class Records(Queries):
    """The writes of a `Transaction` that touch no slice."""

    def plan_effect(self, lease_id: int, kind: str, arguments: Mapping[str, Json]) -> EffectRecord:
        """Journal an effect; commit before the act."""
        now = self._clock.boot_ns()
        made = self._write(
            _PLAN,
            lease=lease_id,
            kind=kind,
            arguments=rows.dump(dict(arguments)),
            state=EffectState.PLANNED,
            at_ns=now,
        )
        return EffectRecord(made.scalar(), lease_id, kind, dict(arguments), EffectState.PLANNED, None, now)

    def mark_effect(
        self, effect_id: int, state: EffectState, evidence: Mapping[str, Json] | None = None
    ) -> None:
        """Without *evidence* what was recorded before stays."""
        values: dict[str, Any] = {"state": state, "at_ns": self._clock.boot_ns()}
        if evidence is not None:
            values["evidence"] = rows.dump(dict(evidence))
        if not self._write(_MARK, of=effect_id, **values).changed:
            raise UnknownThing(f"there is no effect {effect_id}")

    def forget_effect(self, effect_id: int) -> None:
        """Take an undone entry out of its lease's journal: one of which that may have had very many."""
        undone = (effects.c.id == effect_id, effects.c.state == EffectState.UNDONE)
        if not self._write(Statement(delete(effects).where(*undone))).changed:
            raise UnknownThing(f"there is no undone effect {effect_id}")

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
        """Record who did what and why; overlong texts are cut, data beyond 8 KiB left out and marked so.

        One of a kind that repeats takes the place of the same one of the last ten minutes, and counts both.
        """
        reason = rows.clean(reason)
        text = None if data is None else rows.dump(dict(data))
        if text is not None and len(text) > MOST_DATA:
            text = rows.dump({"left_out": f"{len(text)} characters"})
        said = {
            "kind": kind,
            "uid": uid,
            "lease": lease,
            "device": rows.clean(device),
            "reason": reason,
            "data": text,
            "boot_id": self._clock.boot_id,
        }
        now, at = self._clock.boot_ns(), self._clock.wall()
        before = self._taken_back({**said, "since_ns": now - FOLD_NS}) if kind in FOLDED else None
        made = self._write(
            _TELL,
            **said,
            size=_EVENT_BYTES + len(reason or "") + len(text or ""),
            boot_ns=now,
            at=at,
            count=1 + (before[0] if before else 0),
            first_at=before[1] if before else at,
        )
        return int(made.scalar())

    def _taken_back(self, said: Mapping[str, object]) -> tuple[int, float] | None:
        """Delete the same event of a short time ago; how often it came, and when first."""
        with self._connection() as connection:
            found = _SAME.send(connection, said).rows
        if not found:
            return None
        at, times, first_at = found[0]
        self._write(_UNTELL, of=at)
        return times, first_at

    def drain(self, device: str, *, reason: str | None, uid: int, until_ns: int | None) -> None:
        """Drain *device*; a second drain replaces the first. *until_ns* is boot time of this boot."""
        wall = self._clock.wall()
        values = {
            "reason": rows.clean(reason),
            "uid": uid,
            "until_ns": until_ns,
            "until_at": None if until_ns is None else wall + (until_ns - self._clock.boot_ns()) / SECOND_NS,
            "boot_id": self._clock.boot_id,
            "at": wall,
        }
        statement = upsert(drains).on_conflict_do_update(index_elements=["device"], set_=values)
        self._write(Statement(statement.values(device=device, **values)))

    def carry_drain(self, drain: Drain) -> None:
        """Write the end of *drain* anew, as the clocks tell it now."""
        ends = {"until_ns": drain.until_ns, "until_at": drain.until_at, "boot_id": drain.boot_id}
        self._write(Statement(update(drains).where(drains.c.device == drain.device).values(**ends)))

    def undrain(self, device: str) -> bool:
        """False: it was not drained."""
        return bool(self._write(Statement(delete(drains).where(drains.c.device == device))).changed)

    def forget_requests(self, before_ns: int) -> int:
        """Forget request ids of older boots, and those of this boot from before *before_ns*."""
        old = or_(request_keys.c.boot_id != self._clock.boot_id, request_keys.c.at_ns < before_ns)
        return int(self._write(Statement(delete(request_keys).where(old))).changed)

    def prune(
        self,
        *,
        leases_before: float,
        max_events: int,
        max_event_bytes: int,
        max_leases: int = MOST_ENDED,
        events_before: float = 0.0,
    ) -> int:
        """Delete one batch of what is over; returns how many rows went: call it until 0.

        Leases go that ended before *leases_before* (wall clock), or are not of the newest *max_leases* that
        one uid is charged for, and have only free slices, with all that hangs on them. Of the events the
        newest stay, and none from before *events_before*.
        """
        pruned = self._prune_leases(leases_before, max_leases)
        return pruned + self._prune_events(max_events, max_event_bytes, events_before)

    def _prune_leases(self, before: float, most: int) -> int:
        unclean = exists().where(slices.c.lease == leases.c.id, NOT_FREE)
        newest_first = func.row_number().over(partition_by=leases.c.charged_uid, order_by=leases.c.id.desc())
        ended = (
            select(leases.c.id, leases.c.ended_at, newest_first.label("place"))
            .where(leases.c.ended_at.is_not(None), ~unclean)
            .subquery()
        )
        old = select(ended.c.id).where(or_(ended.c.ended_at < before, ended.c.place > most)).limit(BATCH)
        return int(self._write(Statement(delete(leases).where(leases.c.id.in_(old)))).changed)

    def _prune_events(self, most: int, most_bytes: int, oldest_at: float) -> int:
        with self._connection() as connection:
            total = select(func.count(), func.coalesce(func.sum(events.c.size), 0)).select_from(events)
            count, size = Statement(total).send(connection, {}).one()
        # Sums of the oldest batch alone: those of every row take twenty times as long, for each batch.
        batch = select(events.c.id, events.c.size, events.c.at).order_by(events.c.id).limit(BATCH)
        oldest = batch.subquery()
        oldest_first = oldest.c.id
        sums = select(
            oldest.c.id,
            oldest.c.at,
            func.row_number().over(order_by=oldest_first).label("place"),
            (func.sum(oldest.c.size).over(order_by=oldest_first) - oldest.c.size).label("before"),
        ).subquery()
        over = select(sums.c.id).where(
            or_(sums.c.place <= count - most, sums.c.before < size - most_bytes, sums.c.at < oldest_at)
        )
        return int(self._write(Statement(delete(events).where(events.c.id.in_(over)))).changed)

    def _write(self, statement: Statement, **given: object) -> Result:
        """Send *statement*; *given* are its parameters, and the columns that it is to write."""
        with self._connection() as connection:
            return statement.send(connection, given)
