"""A live lease's rows as one JSON value, to be kept outside the ledger, and put back where that is lost.

What is put back passes the tables' own checks and triggers, and is read again as the domain's values before
it is committed: nothing that a grant could not have written comes in.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from sqlalchemy import BindParameter, Connection, Select, Table, bindparam, func, insert, select, tuple_
from sqlalchemy.dialects.sqlite import insert as upsert

from nodeagent.domain.errors import LedgerConflict
from nodeagent.domain.lease import LeaseState, PlacedSlice
from nodeagent.domain.records import EffectState
from nodeagent.ledger import rows
from nodeagent.ledger.statements import Statement
from nodeagent.ledger.tables import (
    NOT_FREE,
    anchors,
    devices,
    effects,
    leases,
    pools,
    request_keys,
    slices,
)

VERSION = 1
Row = dict[str, Any]
Mark = list[Any]  # equal as long as a sidecar says what the ledger says

_PARTS: Mapping[str, Table] = {
    "lease": leases,
    "anchor": anchors,
    "slices": slices,
    "effects": effects,
    "request_keys": request_keys,
    "devices": devices,
    "pools": pools,
}
_ONE = ("lease", "anchor")
_INTEGERS = range(-(1 << 63), 1 << 63)


@dataclass(frozen=True, slots=True)
class Sidecar:
    """What is kept of one lease: its *parts*, by name, as rows of the ledger's tables."""

    lease: int
    boot_id: str
    mark: Mark
    parts: Mapping[str, Any]

    def effects(self) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
        """What is not undone: kind, arguments, evidence. Raises LedgerConflict where it is no journal."""
        for row in self.parts["effects"]:
            try:
                if row["state"] == EffectState.UNDONE:
                    continue
                arguments, evidence = json.loads(row["arguments"]), json.loads(row["evidence"] or "{}")
                if not isinstance(arguments, dict) or not isinstance(evidence, dict):
                    raise TypeError("not an object")
                if arguments.get("lease", self.lease) != self.lease:
                    raise ValueError(f"an effect of lease {arguments['lease']}")
                yield str(row["kind"]), arguments, evidence
            except (KeyError, TypeError, ValueError) as fault:
                raise LedgerConflict(f"lease {self.lease}: its journal cannot be read: {fault}") from None

    def to_json(self) -> Row:
        return {"version": VERSION, "mark": self.mark, **self.parts}


def sidecar_of(lease: int, told: object) -> Sidecar:
    """What `Sidecar.to_json` gave. Raises LedgerConflict where *told* is not that, of *lease*."""
    try:
        return _parsed(lease, told)
    except (KeyError, TypeError, ValueError) as fault:
        raise LedgerConflict(f"no sidecar of lease {lease}: {fault}") from None


def _parsed(lease: int, told: object) -> Sidecar:
    if not isinstance(told, dict) or told.keys() != {"version", "mark", *_PARTS}:
        raise ValueError("other members than it should have")
    if told["version"] != VERSION or not isinstance(told["mark"], list):
        raise ValueError(f"version {told['version']!r}, not {VERSION}")
    for name, table in _PARTS.items():
        part = [told[name]] if name in _ONE else told[name]
        if not isinstance(part, list) or not all(_is_row(row, table) for row in part):
            raise ValueError(f"{name}: not rows of the table")
    if told["lease"]["id"] != lease:
        raise ValueError(f"says lease {told['lease']['id']!r}")
    mine = [told["anchor"], *told["slices"], *told["effects"], *told["request_keys"]]
    if not told["slices"] or any(row["lease"] != lease for row in mine):
        raise ValueError("rows of another lease, or no slice")
    parts = {name: told[name] for name in _PARTS}
    return Sidecar(lease, str(told["lease"]["boot_id"]), told["mark"], parts)


def _is_row(row: object, table: Table) -> bool:
    return (
        isinstance(row, dict)
        and row.keys() <= set(table.columns.keys())
        and all(map(_storable, row.values()))
    )


def _storable(value: object) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return value in _INTEGERS
    return value is None or isinstance(value, float | str)


def _reads() -> dict[str, Statement]:
    """What finds each part of a sidecar, of the lease *of*."""
    of: BindParameter[int] = bindparam("of")
    held = (slices.c.lease == of, NOT_FREE)
    on = tuple_(devices.c.key, devices.c.epoch).in_(select(slices.c.device, slices.c.epoch).where(*held))
    drawn_on = select(slices.c.pool).where(*held).union(select(devices.c.pool).where(on))
    conditions: Mapping[str, tuple[Any, ...]] = {
        "lease": (leases.c.id == of,),
        "anchor": (anchors.c.lease == of,),
        "slices": held,
        "effects": (effects.c.lease == of,),
        "request_keys": (request_keys.c.lease == of,),
        "devices": (on,),
        "pools": (pools.c.key.in_(drawn_on),),
    }
    return {name: Statement(_rows(_PARTS[name]).where(*condition)) for name, condition in conditions.items()}


def _rows(table: Table) -> Select[Any]:
    left_out = ("id",) if table in (slices, effects) else ()  # numbered anew
    columns = [column for column in table.columns if column.name not in left_out]
    return select(*columns).order_by(*table.primary_key.columns)


# Made once, as those of queries.py.
_READS = _reads()
_EVERY_MARK = (
    select(
        leases.c.id,
        leases.c.state,
        select(func.count()).where(slices.c.lease == leases.c.id, NOT_FREE).scalar_subquery(),
        select(func.count()).where(effects.c.lease == leases.c.id).scalar_subquery(),
        select(func.max(effects.c.at_ns)).where(effects.c.lease == leases.c.id).scalar_subquery(),
        anchors.c.armed,
        anchors.c.deadline_ns,
        anchors.c.ttl_seconds,
        anchors.c.pid,
        anchors.c.container,
    )
    .join(anchors, anchors.c.lease == leases.c.id)
    .where(
        leases.c.boot_id == bindparam("boot"),
        leases.c.state != LeaseState.QUEUED,
        leases.c.state != LeaseState.PREPARING,
        leases.c.id.in_(select(slices.c.lease).where(NOT_FREE)),
    )
)
_MARKS = Statement(_EVERY_MARK)
_MARK = Statement(_EVERY_MARK.where(leases.c.id == bindparam("of")))


def read(connection: Connection, lease: int, boot_id: str) -> Sidecar | None:
    """The sidecar of a lease that shall have one, as `marks` says; else None."""
    for row in _MARK.send(connection, {"boot": boot_id, "of": lease}).rows:
        parts: dict[str, Any] = {}
        for name, wanted in _READS.items():
            found = [each._asdict() for each in wanted.send(connection, {"of": lease}).rows]
            parts[name] = found[0] if name in _ONE else found
        return Sidecar(lease, boot_id, [VERSION, *row[1:]], parts)
    return None


def marks(connection: Connection, boot_id: str) -> dict[int, Mark]:
    """Of each lease that shall have a sidecar: what changes whenever what that should say does.

    They are those of this boot that were answered and hold slices: failed ones too, until these are clean.
    """
    return {row[0]: [VERSION, *row[1:]] for row in _MARKS.send(connection, {"boot": boot_id}).rows}


def put_back(connection: Connection, sidecar: Sidecar) -> tuple[PlacedSlice, ...]:
    """Insert a lease, PREPARING, with all that hangs on it but its slices; returns those.

    Its devices and pools are made known as they were: the next scan says what they are now.
    """
    parts = sidecar.parts
    for row in parts["pools"]:
        had = upsert(pools).values(row)
        most = func.max(pools.c.grantable_bytes, had.excluded.grantable_bytes)
        connection.execute(had.on_conflict_do_update(index_elements=["key"], set_={"grantable_bytes": most}))
    for row in parts["devices"]:
        connection.execute(upsert(devices).values(row).on_conflict_do_nothing())
    began = {"state": LeaseState.PREPARING, "ended_ns": None, "ended_at": None}
    connection.execute(insert(leases).values({**parts["lease"], **began}))
    connection.execute(insert(anchors).values(parts["anchor"]))
    for row in parts["effects"]:
        connection.execute(insert(effects).values(row))
    for row in parts["request_keys"]:
        connection.execute(upsert(request_keys).values(row).on_conflict_do_nothing())
    return tuple(rows.placed_of(SimpleNamespace(**row)) for row in parts["slices"])
