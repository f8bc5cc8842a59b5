"""From a checked request body to the order that the service takes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace

from nodeagent.api.models import (
    CgroupAnchor,
    ContainerAnchor,
    GuestBody,
    LeaseOrderBody,
    ProcessAnchor,
    RequireBody,
    SliceBody,
)
from nodeagent.domain.classes import NO_CLASS, Class
from nodeagent.domain.container import Container, Engine
from nodeagent.domain.guarantee import Compute, Ipc, Memory, Requirement, Visibility
from nodeagent.domain.lease import AnchorKind, HolderKind
from nodeagent.domain.request import Policy, Priority, Request, Shape, SliceRequest
from nodeagent.service.hosting import GuestOrder
from nodeagent.service.orders import AnchorOrder, Caller, Order

ClassOf = Callable[[Caller, str | None, HolderKind], Class]

# How long the caller would wait is no part of what it asks for: a retry has less time left.
_NOT_IN_DIGEST = {"request_id", "wait_seconds"}
_LATER = {
    "cdi": False,
    "queue_priority": "normal",
    "class_name": None,
}  # not asked for, as in digests from before there was any


def order_of(
    body: LeaseOrderBody, caller: Caller, class_of: ClassOf = lambda caller, name, kind: NO_CLASS
) -> Order:
    """The order that *body* means, coming from *caller*; whether it may be given is the service's to say.

    *class_of* gives the class by its name, or the one of who names none: what *body* does not say is its.
    """
    anchor = _anchor(body)
    kind, name = _holder(body, anchor, caller)
    its = class_of(caller, body.class_name, kind)
    return Order(
        request=_request(body, its),
        holder_kind=kind,
        holder_id=name,
        anchor=replace(
            anchor,
            ttl_seconds=anchor.ttl_seconds or its.ttl_seconds,
            max_ttl_seconds=its.max_ttl_seconds,
        ),
        request_id=body.request_id,
        digest=digest(body),
        wait_seconds=body.wait_seconds,
    )


def guest_order_of(body: GuestBody) -> GuestOrder:
    """The same of a container that is to be in a lease which is there."""
    return GuestOrder(_container(body.anchor), _requirement(body.require), body.request_id)


def digest(body: LeaseOrderBody) -> str:
    """SHA-256 of what is asked for, with every default filled in, keys sorted and 5.0 written as 5.

    Defaults that come from the caller's process are not in it, so that a retry by another process of the same
    user is the same request.
    """
    unasked = {name for name, plain in _LATER.items() if getattr(body, name) == plain}
    asked = body.model_dump(mode="json", exclude=_NOT_IN_DIGEST | unasked)
    for each in asked["slices"]:
        if not each["partition"]:
            del each["partition"]  # as in digests from before there was any
    text = json.dumps(asked, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _anchor(body: LeaseOrderBody) -> AnchorOrder:
    asked = body.anchor
    if asked is None:
        return AnchorOrder(_default_anchor(body), body.ttl_seconds)
    return AnchorOrder(
        AnchorKind(asked.kind),
        body.ttl_seconds,
        pid=asked.pid if isinstance(asked, ProcessAnchor) else None,
        cgroup=asked.cgroup if isinstance(asked, CgroupAnchor) else None,
        container=_container(asked) if isinstance(asked, ContainerAnchor) else None,
    )


def _container(asked: ContainerAnchor) -> Container:
    return Container(Engine(asked.engine), asked.libc, asked.start_seconds, asked.restarts)


def _default_anchor(body: LeaseOrderBody) -> AnchorKind:
    kind = body.holder.kind if body.holder is not None else "client"
    if kind == "process":
        return AnchorKind.PROCESS
    if kind in ("slurm", "docker") and body.ttl_seconds is None:
        return AnchorKind.EXTERNAL
    return AnchorKind.TTL


def _holder(body: LeaseOrderBody, anchor: AnchorOrder, caller: Caller) -> tuple[HolderKind, str]:
    process = str(anchor.pid or caller.pid)
    if body.holder is None:
        if anchor.kind in (AnchorKind.PROCESS, AnchorKind.CGROUP, AnchorKind.CONTAINER):
            return HolderKind.PROCESS, process
        return HolderKind.CLIENT, body.request_id or str(caller.uid)
    return HolderKind(body.holder.kind), body.holder.id or process


def _request(body: LeaseOrderBody, its: Class) -> Request:
    return Request(
        slices=tuple(_slice(item, its) for item in body.slices),
        placement=Policy(body.placement) if "placement" in body.model_fields_set else its.placement,
        numa_bind=body.numa_bind,
        link_bind=body.link_bind,
        require=_requirement(body.require).and_floor(its.require),
        priority=_priority(body, its),
        cdi=body.cdi,
        queue_priority=Priority(body.queue_priority),
        class_name=its.name or None,
    )


def _priority(body: LeaseOrderBody, its: Class) -> Priority:
    """As asked; of a class that allows no more than `low`, that where nothing is."""
    if "priority" not in body.model_fields_set and its.priority is Priority.LOW:
        return Priority.LOW
    return Priority(body.priority)


def _slice(body: SliceBody, its: Class) -> SliceRequest:
    asked = SliceRequest(
        count=body.count,
        cus=body.cus,
        cu_percent=body.cu_percent,
        cu_shared=body.cu_shared,
        vram_bytes=body.vram_bytes,
        vram_percent=body.vram_percent,
        queue_slots=body.queue_slots,
        shape=Shape(body.shape) if "shape" in body.model_fields_set else its.each.shape,
        device=tuple(body.device),
        not_device=tuple(body.not_device),
        type=tuple(body.type),
        not_type=tuple(body.not_type),
        partition=body.partition,
    )
    return its.filled(asked)


def _requirement(body: RequireBody) -> Requirement:
    return Requirement(
        memory=Memory(body.memory) if body.memory else None,
        compute=Compute(body.compute) if body.compute else None,
        visibility=Visibility(body.visibility) if body.visibility else None,
        ipc=Ipc(body.ipc) if body.ipc else None,
    )
