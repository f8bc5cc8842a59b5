"""Any sequence of grants and releases against a model of plain sets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.domain.refusals import Refusal
from nodeagent.domain.request import Policy, Request, Shape, SliceRequest

GIB = 1 << 30
parts = st.builds(
    SliceRequest,
    count=st.integers(1, 2),
    cu_percent=st.sampled_from([None, 0.5, 1, 10, 25, 33.3, 50, 100]),
    vram_bytes=st.sampled_from([None, 4096, GIB, 20 * GIB]),
    queue_slots=st.sampled_from([None, 1, 6]),
    shape=st.sampled_from(list(Shape)),
)
shared = st.builds(SliceRequest, cu_shared=st.just(True), vram_bytes=st.sampled_from([GIB, 9 * GIB]))
requests = st.builds(
    Request,
    slices=st.lists(parts | shared, min_size=1, max_size=2).map(tuple),
    placement=st.sampled_from(list(Policy)),
)
acts = st.lists(requests | st.integers(0, 20), max_size=25)


def check(node) -> None:
    """The invariants, said with plain sets."""
    for device in node.inventory.devices:
        here = [one.placed for one in node.held if one.placed.device == device.key]
        own = [set(one.cus) for one in here if not one.shared]
        common = {frozenset(one.cus) for one in here if one.shared}
        assert len(common) <= 1
        taken = own + [set(one) for one in common]
        assert sum(map(len, taken)) == len(set().union(*taken))
        assert sum(one.queue_slots for one in here) <= device.queue_slots
        assert sum(one.vram_bytes for one in here) <= device.grantable_bytes
        assert len(here) <= 1 or not any(one.exclusive for one in here)
        for one in here:
            check_slice(device.geometry, one)
    for pool in node.inventory.pools:
        assert sum(one.placed.vram_bytes for one in node.held if one.placed.pool == pool.key) <= (
            pool.grantable_bytes
        )


def check_slice(geometry, placed) -> None:
    members = set(placed.cus)
    assert members <= set(range(geometry.cus))
    assert {bit % geometry.xccs for bit in members} == set(range(geometry.xccs))
    assert geometry.pair == 1 or all(bit ^ 1 in members for bit in members)
    assert placed.whole == (len(members) == geometry.cus)
    assert placed.vram_bytes > 0
    assert placed.queue_slots > 0


@pytest.mark.parametrize("kind", ["mi300x-spx", "mi300x-cpx", "mi210", "rx7900xtx"])
@given(acts=acts)
def test_no_sequence_breaks_an_invariant(machines, new_node, kind, acts) -> None:
    """CUs stay disjoint, bytes and slots within bounds, and a refusal leaves nothing behind."""
    node = new_node(machines.partitions(2, 3) if kind == "mi300x-cpx" else machines.node(kind, 3))
    for act in acts:
        before = list(node.held)
        if isinstance(act, int):
            node.free(act)
        elif isinstance(answer := node.ask(act), Refusal):
            assert node.held == before
            assert answer.why
            assert answer.next_act
        else:
            assert len(answer) == sum(one.count for one in act.slices)
            assert len({one.device for one in answer}) == len(answer)
        check(node)
