"""The writes of one transaction. What a row may say is for the tables and triggers to refuse."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, bindparam, delete, insert, select, update
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.sqlite import insert as upsert

from nodeagent.domain.clock import Clock
from nodeagent.domain.device import Device, Pool
from nodeagent.domain.errors import LedgerConflict, UnknownThing
from nodeagent.domain.guarantee import Guarantee
from nodeagent.domain.lease import (
    ENDED,
    Anchor,
    HeldSlice,
    Holder,
    Lease,
    LeaseState,
    PlacedSlice,
    SliceState,
)
from nodeagent.domain.records import Drain
from nodeagent.domain.request import Request
from nodeagent.ledger import rows
from nodeagent.ledger.faults import Translated
from nodeagent.ledger.ids import IdBlocks
from nodeagent.ledger.present import Present
from nodeagent.ledger.records import Records
from nodeagent.ledger.sidecar import Sidecar, put_back
from nodeagent.ledger.statements import Result, Statement
from nodeagent.ledger.tables import (
    accounts,
    anchors,
    boots,
    devices,
    drains,
    held_cus,
    leases,
    member,
    pools,
    request_keys,
    shared_sets,
    slices,
)


def _upsert(table: Table) -> sqlite.Insert:
    """Write the row, in place of one of the same key."""
    new = upsert(table)
    values = {column.name: new.excluded[column.name] for column in table.columns if not column.primary_key}
    return new.on_conflict_do_update(index_elements=list(table.primary_key.columns), set_=values)


def _row(table: Table, value: Device | Pool) -> rows.Values:
    return {column.name: getattr(value, column.name) for column in table.columns}


# Made once, as those of queries.py.
_REGISTER_POOL, _REGISTER_DEVICE = Statement(_upsert(pools)), Statement(_upsert(devices))
_NOTE_BOOT = Statement(upsert(boots).on_conflict_do_nothing())
_SHARE = Statement(upsert(shared_sets).on_conflict_do_nothing())
_OPEN, _ANCHOR = Statement(insert(leases)), Statement(insert(anchors))
_ACCOUNT = Statement(insert(accounts))
_CHANGE_LEASE = Statement(update(leases).where(leases.c.id == bindparam("of")))
_CHANGE_ANCHOR = Statement(update(anchors).where(anchors.c.lease == bindparam("of")))
_OF_LEASE = update(slices).where(
    slices.c.lease == bindparam("of"), slices.c.state != SliceState.FREE, slices.c.state != bindparam("to")
)
_MOVE_SLICES = Statement(_OF_LEASE)
_MOVE_SOME = Statement(_OF_LEASE.where(slices.c.id.in_(select(member("only")))))
_REMEMBER = Statement(insert(request_keys))
_FORGET = Statement(
    delete(request_keys).where(
        request_keys.c.uid == bindparam("of"), request_keys.c.request_id == bindparam("what")
    )
)
_HOLD = Statement(insert(slices).returning(slices.c.id))
# For all CUs: the driver drops the interpreter's lock in each statement, and under load waits long for it.
_HOLD_CUS = Statement(
    insert(held_cus).from_select(
        ["device", "epoch", "cu", "slice"],
        select(bindparam("on"), bindparam("since"), member("cus"), bindparam("by")),
    )
)


class Transaction(Records):
    """Reads see the transaction's own writes. All of it is there after the commit, or none."""

    def __init__(
        self, connection: Connection, clock: Clock, ids: IdBlocks, path: Path, present: Present | None
    ) -> None:
        self._translated = Translated(path, connection)
        self._clock = clock
        self._ids = ids
        self._before = present  # as of the last commit; None: not known
        self._written: set[Any] = set()  # tables
        self._touched: set[int] = set()  # leases of which anything was written
        self._read: dict[int, Lease] = {}  # touched ones, as they are by now

    def _connection(self) -> Translated[Connection]:
        return self._translated

    def held(self) -> tuple[HeldSlice, ...]:
        return super().held() if self._before is None or self._touched else self._before.held

    def drains(self) -> tuple[Drain, ...]:
        return super().drains() if self._before is None or drains in self._written else self._before.drains

    def lease(self, lease_id: int) -> Lease | None:
        known = self._before.leases if self._before and lease_id not in self._touched else self._read
        found = known.get(lease_id) or super().lease(lease_id)
        if found is not None and lease_id in self._touched:
            self._read[lease_id] = found
        return found

    def present_after(self) -> Present:
        """The leases that are there once this is committed."""
        if self._before is None:
            return Present(self.all_present(), self.drains())
        changed = {**self.some(self._touched - self._read.keys()), **self._read}
        return self._before.after(changed, self.drains())

    def _write(self, statement: Statement, **given: object) -> Result:
        self._written.add(statement.table)
        return super()._write(statement, **given)

    def _touch(self, lease_id: int) -> None:
        self._touched.add(lease_id)
        self._read.pop(lease_id, None)

    def register(self, found: Sequence[Device], found_pools: Sequence[Pool]) -> None:
        """Set the limits that new slices are held to; what is not listed keeps its own."""
        for pool in found_pools:
            self._write(_REGISTER_POOL, **_row(pools, pool))
        for device in found:
            self._write(_REGISTER_DEVICE, **_row(devices, device))

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
        charged_uid: int | None = None,
        asker_uid: int | None = None,
        account: str | None = None,
    ) -> int:
        """Open a QUEUED lease without slices, or a PREPARING one that holds *placed*; returns its id.

        *charged_uid* is whose limits it uses up, *asker_uid* among whose request ids *request_id* is; unless
        told otherwise both are the holder. *account* is Slurm's, of a job.

        Raises:
            LedgerConflict: something of *placed* is held already, or the request id is in use.
            LedgerUnavailable: no id can be given.
        """
        now, at = self._clock.boot_ns(), self._clock.wall()
        lease_id = self._ids.take(self.high_water())
        self._touch(lease_id)
        self._note_boot()
        self._write(
            _OPEN,
            id=lease_id,
            state=state,
            holder_kind=holder.kind,
            holder_id=holder.id,
            uid=holder.uid,
            gid=gid,
            charged_uid=holder.uid if charged_uid is None else charged_uid,
            request=rows.request_text(request),
            request_id=request_id,
            boot_id=self._clock.boot_id,
            created_ns=now,
            created_at=at,
            wait_until_ns=wait_until_ns,
            guarantee=rows.guarantee_text(Guarantee()),
        )
        self._write(_ANCHOR, lease=lease_id, **rows.anchor_values(anchor))
        if account is not None:
            self._write(_ACCOUNT, lease=lease_id, account=account)
        if request_id is not None:
            self._remember(lease_id, holder.uid if asker_uid is None else asker_uid, request_id, digest)
        self._hold(lease_id, placed)
        return lease_id

    def rebuild(self, sidecar: Sidecar) -> Lease:
        """Put back a lease that the ledger lost, under its own id: ACTIVE as it was, else RELEASING.

        Raises:
            LedgerConflict, IllegalMove: what it holds is held, its id is not above all others, or its rows
                are none that a grant could have written.
        """
        self._note_boot()
        self._touch(sidecar.lease)
        try:
            with self._connection() as connection:
                placed = put_back(connection, sidecar)
            self._hold(sidecar.lease, placed)
            self.move_lease(sidecar.lease, LeaseState.ACTIVE)
            if sidecar.parts["lease"].get("state") != LeaseState.ACTIVE:
                self.move_lease(sidecar.lease, LeaseState.RELEASING)
                self.move_slices(sidecar.lease, SliceState.CLEANING)
            lease = self.lease(sidecar.lease)  # parsed, as it will be at every look
            tuple(self.effects(sidecar.lease))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as fault:
            raise LedgerConflict(f"lease {sidecar.lease}: its sidecar cannot be read: {fault!r}") from None
        if lease is None:
            raise LedgerConflict(f"lease {sidecar.lease} vanished inside its own transaction")
        return lease

    def place(self, lease_id: int, placed: Sequence[PlacedSlice]) -> None:
        """Give a queued lease its slices: it is PREPARING then."""
        self.move_lease(lease_id, LeaseState.PREPARING)
        self._hold(lease_id, placed)

    def move_lease(self, lease_id: int, to: LeaseState, *, reason: str | None = None) -> None:
        """Move the lease; without *reason* an earlier one stays.

        Raises:
            IllegalMove: it cannot go there from its state.
            UnknownThing: there is no such lease.
        """
        values: rows.Values = {"state": to}
        if reason is not None:
            values["reason"] = rows.clean(reason)
        if to in ENDED:
            values |= {"ended_ns": self._clock.boot_ns(), "ended_at": self._clock.wall()}
        self._change_lease(lease_id, values)

    def move_slices(
        self,
        lease_id: int,
        to: SliceState,
        *,
        only: Collection[int] | None = None,
        reason: str | None = None,
    ) -> None:
        """Move the lease's slices, or *only* those ids of it. Those that are free already, or in *to*, stay.

        To FREE gives back their CUs, and the shared set with its last sharer.
        """
        self._touch(lease_id)
        values = {"state": to} | ({} if reason is None else {"reason": rows.clean(reason)})
        if only is None:
            self._write(_MOVE_SLICES, of=lease_id, to=to, **values)
        else:
            self._write(_MOVE_SOME, of=lease_id, to=to, only=json.dumps(list(only)), **values)

    def activate(
        self,
        lease_id: int,
        *,
        guarantee: Guarantee,
        environment: Mapping[str, str | None],
        cgroup: str | None,
        anchor: Anchor,
    ) -> None:
        """PREPARING to ACTIVE: its limits are in place and read back.

        Raises:
            IllegalMove: also for a lease that does not hold every CU of its slices.
        """
        self.set_anchor(lease_id, anchor)
        self._change_lease(
            lease_id,
            {
                "state": LeaseState.ACTIVE,
                "guarantee": rows.guarantee_text(guarantee),
                "environment": rows.dump(dict(environment)),
                "cgroup": cgroup,
            },
        )

    def set_anchor(self, lease_id: int, anchor: Anchor) -> None:
        self._touch(lease_id)
        values = rows.anchor_values(anchor)
        if not self._write(_CHANGE_ANCHOR, of=lease_id, **values).changed:
            raise UnknownThing(f"there is no lease {lease_id}")

    def _note_boot(self) -> None:
        now, at = self._clock.boot_ns(), self._clock.wall()
        self._write(_NOTE_BOOT, boot_id=self._clock.boot_id, started_ns=now, at=at)

    def _change_lease(self, lease_id: int, values: rows.Values) -> None:
        self._touch(lease_id)
        if not self._write(_CHANGE_LEASE, of=lease_id, **values).changed:
            raise UnknownThing(f"there is no lease {lease_id}")

    def _remember(self, lease_id: int, uid: int, request_id: str, digest: str) -> None:
        if self.remembered(uid, request_id) is not None:
            raise LedgerConflict(f"request id {request_id} of uid {uid} has a lease already")
        self._write(_FORGET, of=uid, what=request_id)  # one of an older boot, or of more than 24 h ago
        self._write(
            _REMEMBER,
            uid=uid,
            request_id=request_id,
            digest=digest,
            lease=lease_id,
            boot_id=self._clock.boot_id,
            at_ns=self._clock.boot_ns(),
        )

    def _hold(self, lease_id: int, placed: Sequence[PlacedSlice]) -> None:
        self._touch(lease_id)
        for ordinal, each in enumerate(placed):
            if each.shared:
                self._share(each)
            slice_id = self._write(_HOLD, **rows.slice_values(each, lease_id, ordinal)).scalar()
            if not each.shared:
                self._hold_cus(each, slice_id)

    def _share(self, placed: PlacedSlice) -> None:
        """Hold the device's shared set, unless a lease that shares it does so already."""
        if self._write(_SHARE, device=placed.device, epoch=placed.epoch, cus=str(placed.cus)).changed:
            self._hold_cus(placed, None)

    def _hold_cus(self, placed: PlacedSlice, slice_id: int | None) -> None:
        cus = json.dumps(list(placed.cus))
        self._write(_HOLD_CUS, cus=cus, on=placed.device, since=placed.epoch, by=slice_id)
