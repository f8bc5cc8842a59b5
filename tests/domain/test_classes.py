"""Classes as pure rules: who may name one, what it fills in, and what is too much for it."""

from __future__ import annotations

import pytest

from nodeagent.domain.classes import NO_CLASS, Class
from nodeagent.domain.cuset import CuSet
from nodeagent.domain.lease import HolderKind, PlacedSlice
from nodeagent.domain.quota import Limits
from nodeagent.domain.request import Shape, SliceRequest

GIB = 1 << 30
USERS, GROUPS = frozenset({1000}), frozenset({500})


@pytest.mark.parametrize(
    ("rule", "open_to"),
    [
        (Class(), {"alice", "bob", "carol"}),
        (Class(users=USERS), {"alice"}),
        (Class(groups=GROUPS), {"bob"}),
        (Class(users=USERS, groups=GROUPS), {"alice", "bob"}),
    ],
)
def test_a_class_is_open_to_its_users_and_groups(rule: Class, open_to: set[str]) -> None:
    """Without either to everybody, with both to whom one of them names."""
    who = {"alice": (1000, {7}), "bob": (1001, {7, 500}), "carol": (1002, set[int]())}
    assert {name for name, (uid, groups) in who.items() if rule.open_to(uid, groups)} == open_to


def test_a_class_may_be_for_some_kinds_of_holders() -> None:
    """For another kind it cannot be named; to whom it is open at all is told without one."""
    rule = Class(kinds=frozenset({HolderKind.PROCESS}))
    assert rule.open_to(1, (), HolderKind.PROCESS) and rule.open_to(1, ())
    assert not rule.open_to(1, (), HolderKind.CLIENT)


@pytest.mark.parametrize(
    ("asked", "filled"),
    [
        (SliceRequest(), SliceRequest(cu_percent=25.0, vram_bytes=GIB, queue_slots=2)),
        (SliceRequest(cus=8), SliceRequest(cus=8, vram_bytes=GIB, queue_slots=2)),
        (SliceRequest(cu_shared=True), SliceRequest(cu_shared=True, vram_bytes=GIB, queue_slots=2)),
        (SliceRequest(vram_percent=50.0), SliceRequest(cu_percent=25.0, vram_percent=50.0, queue_slots=2)),
        (SliceRequest(queue_slots=4), SliceRequest(cu_percent=25.0, vram_bytes=GIB, queue_slots=4)),
        (SliceRequest(partition=True), SliceRequest(partition=True)),
    ],
)
def test_what_is_not_said_is_filled_in(asked: SliceRequest, filled: SliceRequest) -> None:
    """VRAM, CUs and queue slots each where none of their words is there; a partition has its own sizes."""
    rule = Class(each=SliceRequest(cu_percent=25.0, vram_bytes=GIB, queue_slots=2))
    assert rule.filled(asked) == filled
    assert NO_CLASS.filled(asked) == asked


def test_the_most_of_a_class_is_of_what_was_placed() -> None:
    """The slices of a lease together, and exactly the limit is allowed."""
    one = PlacedSlice(
        device="d", epoch=0, pool="p", cus=CuSet.parse("0-7"), shared=False, exclusive=False, whole=False,
        cu_requested=8, effective_cus=8, vram_bytes=GIB, queue_slots=1, shape=Shape.EVEN,
    )  # fmt: skip
    rule = Class("small", limits=Limits(vram_bytes=2 * GIB, cus=16))
    assert rule.over([one, one]) is None
    over = rule.over([one, one, one])
    assert over is not None and over.never
    assert over.why == "class small, VRAM: 3.0 GiB asked, 2.0 GiB allowed"
