"""The writes of one transaction. What a row may say is for the tables and triggers to refuse."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, delete, func, insert, literal, select, update
from sqlalchemy.dialects.sqlite import insert as upsert

from nodeagent.domain.clock import Clock
from nodeagent.domain.device import Device, Pool
from nodeagent.domain.errors import LedgerConflict, UnknownThing
from nodeagent.domain.guarantee import Guarantee
from nodeagent.domain.lease import ENDED, Anchor, Holder, Lease, LeaseState, PlacedSlice, SliceState
from nodeagent.domain.request import Request
from nodeagent.ledger import rows
from nodeagent.ledger.faults import translated
from nodeagent.ledger.ids import IdBlocks
from nodeagent.ledger.records import Records
from nodeagent.ledger.sidecar import Sidecar, put_back
from nodeagent.ledger.tables import (
    anchors,
    boots,
    devices,
    held_cus,
    leases,
    pools,
    request_keys,
    shared_sets,
    slices,
)


class Transaction(Records):
    """Reads see the transaction's own writes. All of it is there after the commit, or none."""

    def __init__(self, connection: Connection, clock: Clock, ids: IdBlocks, path: Path) -> None:
        self._open_connection = connection
        self._path = path
        self._clock = clock
        self._ids = ids

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        with translated(self._path):
            yield self._open_connection

    def register(self, found: Sequence[Device], found_pools: Sequence[Pool]) -> None:
        """Set the limits that new slices are held to; what is not listed keeps its own."""
        for pool in found_pools:
            limits = {
                "region": pool.region,
                "vram_bytes": pool.vram_bytes,
                "grantable_bytes": pool.grantable_bytes,
            }
            statement = upsert(pools).values(key=pool.key, **limits)
            self._write(statement.on_conflict_do_update(index_elements=["key"], set_=limits))
        for device in found:
            values = {
                "pool": device.pool,
                "cus": device.cus,
                "queue_slots": device.queue_slots,
                "compute_partition": device.compute_partition,
                "memory_partition": device.memory_partition,
            }
            row = upsert(devices).values(key=device.key, epoch=device.epoch, **values)
            self._write(row.on_conflict_do_update(index_elements=["key", "epoch"], set_=values))

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
    ) -> int:
        """Open a QUEUED lease without slices, or a PREPARING one that holds *placed*; returns its id.

        *charged_uid* is whose limits it uses up, *asker_uid* among whose request ids *request_id* is; unless
        told otherwise both are the holder.

        Raises:
            LedgerConflict: something of *placed* is held already, or the request id is in use.
            LedgerUnavailable: no id can be given.
        """
        now, at = self._clock.boot_ns(), self._clock.wall()
        lease_id = self._ids.take(self.high_water())
        self._note_boot()
        self._write(
            insert(leases).values(
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
        )
        self._write(insert(anchors).values(lease=lease_id, **rows.anchor_values(anchor)))
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
        mine = [slices.c.lease == lease_id, slices.c.state.not_in((SliceState.FREE, to))]
        if only is not None:
            mine.append(slices.c.id.in_(only))
        values = {"state": to} | ({} if reason is None else {"reason": rows.clean(reason)})
        self._write(update(slices).where(*mine).values(values))

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
        values = rows.anchor_values(anchor)
        if not self._write(update(anchors).where(anchors.c.lease == lease_id).values(values)).rowcount:
            raise UnknownThing(f"there is no lease {lease_id}")

    def _note_boot(self) -> None:
        now, at = self._clock.boot_ns(), self._clock.wall()
        boot = upsert(boots).values(boot_id=self._clock.boot_id, started_ns=now, at=at)
        self._write(boot.on_conflict_do_nothing())

    def _change_lease(self, lease_id: int, values: rows.Values) -> None:
        if not self._write(update(leases).where(leases.c.id == lease_id).values(values)).rowcount:
            raise UnknownThing(f"there is no lease {lease_id}")

    def _remember(self, lease_id: int, uid: int, request_id: str, digest: str) -> None:
        if self.remembered(uid, request_id) is not None:
            raise LedgerConflict(f"request id {request_id} of uid {uid} has a lease already")
        mine = (request_keys.c.uid == uid, request_keys.c.request_id == request_id)
        self._write(delete(request_keys).where(*mine))  # one of an older boot, or of more than 24 h ago
        self._write(
            insert(request_keys).values(
                uid=uid,
                request_id=request_id,
                digest=digest,
                lease=lease_id,
                boot_id=self._clock.boot_id,
                at_ns=self._clock.boot_ns(),
            )
        )

    def _hold(self, lease_id: int, placed: Sequence[PlacedSlice]) -> None:
        for ordinal, each in enumerate(placed):
            if each.shared:
                self._share(each)
            statement = insert(slices).values(rows.slice_values(each, lease_id, ordinal))
            slice_id = self._write(statement.returning(slices.c.id)).scalar_one()
            if not each.shared:
                self._hold_cus(each, slice_id)

    def _share(self, placed: PlacedSlice) -> None:
        """Hold the device's shared set, unless a lease that shares it does so already."""
        here = {"device": placed.device, "epoch": placed.epoch}
        first = upsert(shared_sets).values(cus=str(placed.cus), **here).on_conflict_do_nothing()
        if self._write(first).rowcount:
            self._hold_cus(placed, None)

    def _hold_cus(self, placed: PlacedSlice, slice_id: int | None) -> None:
        # One statement: the driver drops the interpreter's lock in each, and under load waits long for it.
        each = func.json_each(json.dumps(list(placed.cus))).table_valued("value")
        held = select(literal(placed.device), literal(placed.epoch), each.c.value, literal(slice_id))
        self._write(insert(held_cus).from_select(["device", "epoch", "cu", "slice"], held))
