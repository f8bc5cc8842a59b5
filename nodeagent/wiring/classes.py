"""Builds the site's classes: names become numbers here, once."""

from __future__ import annotations

from collections.abc import Callable

from nodeagent import config as settings
from nodeagent.domain.classes import Class
from nodeagent.domain.lease import HolderKind
from nodeagent.domain.quota import Limits
from nodeagent.domain.request import Policy, Priority, Shape, SliceRequest
from nodeagent.domain.sizes import size_of
from nodeagent.service.classes import Classes


def build_classes(config: settings.Config, owner_of: Callable[[int], int]) -> Classes:
    """The classes, in the order in which the site has them."""
    classes = [_class(name, told) for name, told in config.classes.items()]
    return Classes(classes, owner_of, Priority(config.limits.priority))


def _class(name: str, told: settings.Class) -> Class:
    return Class(
        name=name,
        users=frozenset(uid for one in told.users if (uid := settings.uid_of(str(one))) is not None),
        groups=frozenset(gid for one in told.groups if (gid := settings.gid_of(str(one))) is not None),
        kinds=frozenset(map(HolderKind, told.kinds)),
        default=told.default,
        each=SliceRequest(
            **settings.vram_of(told.vram),
            **settings.cu_of(told.cu),
            queue_slots=told.queue_slots,
            shape=Shape(told.shape),
        ),
        placement=Policy(told.placement),
        ttl_seconds=told.ttl_seconds,
        max_ttl_seconds=told.max_ttl_seconds,
        limits=Limits(
            vram_bytes=None if told.max_vram is None else size_of(str(told.max_vram)),
            cus=told.max_cus,
            queue_slots=told.max_queue_slots,
        ),
        priority=None if told.priority is None else Priority(told.priority),
        require=settings.requirement_of(told.require),
    )
