"""Rows to the domain's values and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any, cast

from nodeagent.domain.container import Container, Engine
from nodeagent.domain.cuset import CuSet
from nodeagent.domain.guarantee import Compute, Guarantee, Ipc, Memory, Queues, Requirement, Visibility
from nodeagent.domain.lease import (
    Anchor,
    AnchorKind,
    HeldSlice,
    Holder,
    HolderKind,
    Lease,
    LeaseState,
    PlacedSlice,
    SliceState,
)
from nodeagent.domain.records import Drain, EffectRecord, EffectState, Event, Json
from nodeagent.domain.request import Policy, Priority, Request, Shape, SliceRequest
from nodeagent.ledger.statements import Row

Values = dict[str, Any]
KEPT = 4096  # parsed values, for the same texts come up at every look; values, so they can be shared
MOST_TEXT = 1024  # characters of one reason or device name
_FLAGS = ("shared", "exclusive", "whole")


def dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def clean(text: str | None) -> str | None:
    """Text that SQLite can store, of a bounded length; file names may hold bytes that are no UTF-8."""
    return None if text is None else text[:MOST_TEXT].encode("utf-8", "replace").decode("utf-8")


def _mapping(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def request_text(request: Request) -> str:
    values = _fields(request)
    values["require"] = _fields(request.require)
    values["slices"] = [_fields(each) for each in request.slices]
    for each in values["slices"]:
        if not each["partition"]:
            del each["partition"]  # an agent from before there was any reads it, too
    return dump(values)


def _fields(value: Request | Requirement | SliceRequest) -> Values:
    """As `asdict`, which copies all that it finds."""
    return {name: getattr(value, name) for name in value.__slots__}


def request_of(text: str) -> Request:
    return _kept_request(text) if len(text) <= MOST_TEXT else _request(text)


def _request(text: str) -> Request:
    stored = json.loads(text)
    require = stored["require"]
    return Request(
        slices=tuple(_slice_request(each) for each in stored["slices"]),
        placement=Policy(stored["placement"]),
        numa_bind=stored["numa_bind"],
        link_bind=stored["link_bind"],
        require=Requirement(
            memory=Memory(require["memory"]) if require["memory"] else None,
            compute=Compute(require["compute"]) if require["compute"] else None,
            visibility=Visibility(require["visibility"]) if require["visibility"] else None,
            ipc=Ipc(require["ipc"]) if require.get("ipc") else None,
        ),
        priority=Priority(stored["priority"]),
        cdi=stored.get("cdi", False),  # a request from before there was any
        queue_priority=Priority(stored.get("queue_priority", Priority.NORMAL)),  # the same
        class_name=stored.get("class_name"),
    )


_kept_request = lru_cache(maxsize=KEPT)(_request)  # short ones: no user is to fill memory with long ones


def _slice_request(stored: Values) -> SliceRequest:
    lists = {name: tuple(value) for name, value in stored.items() if isinstance(value, list)}
    return SliceRequest(**{**stored, **lists, "shape": Shape(stored["shape"])})


@lru_cache(maxsize=KEPT)
def guarantee_text(guarantee: Guarantee) -> str:
    return dump(asdict(guarantee))


@lru_cache(maxsize=KEPT)
def _guarantee(text: str) -> Guarantee:
    stored = json.loads(text)
    return Guarantee(
        Memory(stored["memory"]),
        Compute(stored["compute"]),
        Visibility(stored["visibility"]),
        Ipc(stored.get("ipc", Ipc.SHARED)),  # of a lease from before there was another
        Queues(stored.get("queues", Queues.NONE)),
    )


def anchor_values(anchor: Anchor) -> Values:
    container = None if anchor.container is None else dump(asdict(anchor.container))
    values = {name: getattr(anchor, name) for name in Anchor.__slots__}
    return {**values, "armed": int(anchor.armed), "container": container}


def _anchor(row: Row) -> Anchor:
    return Anchor(
        kind=AnchorKind(row.anchor_kind),
        armed=bool(row.armed),
        deadline_ns=row.deadline_ns,
        ttl_seconds=row.ttl_seconds,
        pid=row.pid,
        start_time=row.start_time,
        cgroup=row.anchor_cgroup,
        inode=row.inode,
        container=None if row.container is None else _container(row.container),
    )


@lru_cache(maxsize=KEPT)
def _container(text: str) -> Container:
    stored = json.loads(text)
    return Container(**{**stored, "engine": Engine(stored["engine"])})


def slice_values(placed: PlacedSlice, lease_id: int, ordinal: int) -> Values:
    return {
        **{name: getattr(placed, name) for name in PlacedSlice.__slots__},
        **{name: int(getattr(placed, name)) for name in _FLAGS},
        "cus": str(placed.cus),
        "cu_count": len(placed.cus),
        "lease": lease_id,
        "ordinal": ordinal,
        "state": SliceState.HELD,
    }


_cus = lru_cache(maxsize=KEPT)(CuSet.parse)


def placed_of(row: Any) -> PlacedSlice:
    """*row*: anything with the columns of a slice as its attributes."""
    return PlacedSlice(
        device=row.device,
        epoch=row.epoch,
        pool=row.pool,
        cus=_cus(row.cus),
        shared=bool(row.shared),
        exclusive=bool(row.exclusive),
        whole=bool(row.whole),
        cu_requested=row.cu_requested,
        effective_cus=row.effective_cus,
        vram_bytes=row.vram_bytes,
        queue_slots=row.queue_slots,
        shape=Shape(row.shape),
    )


def slice_of(row: Row) -> HeldSlice:
    """*row*: a slice with its lease's uid, and whether its anchor is armed, and until when."""
    state = SliceState(row.state)
    # The deadline of an unarmed anchor is one for the start; that of an armed one ends the lease.
    bounded = bool(row.armed) and state is SliceState.HELD
    return HeldSlice(
        id=row.id,
        lease=row.lease,
        uid=row.uid,
        placed=placed_of(row),
        state=state,
        ends_ns=row.deadline_ns if bounded else None,
    )


def lease_of(row: Row, slices: tuple[HeldSlice, ...]) -> Lease:
    """*row*: a lease with its anchor's columns."""
    return Lease(
        id=row.id,
        state=LeaseState(row.state),
        holder=Holder(HolderKind(row.holder_kind), row.holder_id, row.uid),
        anchor=_anchor(row),
        request=request_of(row.request),
        request_id=row.request_id,
        boot_id=row.boot_id,
        created_ns=row.created_ns,
        created_at=row.created_at,
        slices=slices,
        guarantee=_guarantee(row.guarantee),
        environment=cast("Mapping[str, str | None] | None", _mapping(row.environment)),
        cgroup=row.cgroup,
        ended_at=row.ended_at,
        reason=row.reason,
        wait_until_ns=row.wait_until_ns,
        gid=row.gid,
    )


def effect_of(row: Row) -> EffectRecord:
    return EffectRecord(
        id=row.id,
        lease=row.lease,
        kind=row.kind,
        arguments=cast("Mapping[str, Json]", _mapping(row.arguments)),
        state=EffectState(row.state),
        evidence=cast("Mapping[str, Json] | None", _mapping(row.evidence)),
        at_ns=row.at_ns,
    )


def event_of(row: Row) -> Event:
    return Event(
        id=row.id,
        kind=row.kind,
        at=row.at,
        boot_ns=row.boot_ns,
        boot_id=row.boot_id,
        uid=row.uid,
        lease=row.lease,
        device=row.device,
        reason=row.reason,
        data=cast("Mapping[str, Json] | None", _mapping(row.data)),
        count=row.count,
        first_at=row.first_at,
    )


def drain_of(row: Row) -> Drain:
    return Drain(row.device, row.reason, row.uid, row.until_ns, row.boot_id, row.at, row.until_at)
