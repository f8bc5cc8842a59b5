"""The queue's own rules: whose turn it is, where a request will start, and who may pass it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.domain.lease import HeldSlice, HolderKind, SliceState
from nodeagent.domain.placement import place
from nodeagent.domain.queue import (
    AGING_NS,
    Ground,
    Outlook,
    Reservation,
    Waiting,
    in_order,
    kept_back,
    leaves,
    outlook,
    positions,
    unkept,
)
from nodeagent.domain.refusals import Code, Refusal
from nodeagent.domain.request import Policy, Priority, Request, SliceRequest

NOW = 10 * AGING_NS
GIB = 1 << 30
CLIENT, WHOLE = HolderKind.CLIENT, Request()


def waiting(lease: int, owner: int = 1, request: Request = WHOLE, since_ns: int = NOW) -> Waiting:
    return Waiting(lease, owner, CLIENT, request, since_ns)


def of(priority: Priority) -> Request:
    return Request(priority=priority)


parts = st.builds(
    SliceRequest,
    count=st.integers(1, 2),
    cu_percent=st.sampled_from([10, 25, 50, 75]),
    vram_bytes=st.sampled_from([None, GIB, 20 * GIB]),
)
shared = st.builds(SliceRequest, cu_shared=st.just(True), vram_bytes=st.sampled_from([GIB, 9 * GIB]))
small = st.builds(
    Request,
    slices=(parts | shared).map(lambda one: (one,)),
    placement=st.sampled_from([Policy.BINPACK, Policy.SPREAD]),
)
large = st.sampled_from(
    [Request(), Request((SliceRequest(count=2),)), Request((SliceRequest(cu_percent=75),))]
)
ends = st.sampled_from([None, 5, 10, 20, 30])
crowds = st.lists(st.tuples(small, ends), max_size=8)
lines = st.lists(
    st.builds(
        waiting,
        st.integers(1, 40),
        st.integers(1, 4),
        st.sampled_from(Priority).map(of),
        st.sampled_from([NOW, NOW - AGING_NS]),
    ),
    unique_by=lambda one: one.lease,
    max_size=15,
)


def crowd(node, asked):
    for request, end in asked:
        node.ask(request, end)
    return node


@given(line=lines, served=st.dictionaries(st.integers(1, 4), st.integers(1, 9)))
def test_the_order_is_fair(line, served) -> None:
    """By priority; nobody's next request before another's first; each owner's own in order of arrival."""
    ordered = in_order(line, NOW, served)
    assert sorted(ordered, key=lambda one: one.lease) == sorted(line, key=lambda one: one.lease)
    ranks = [one.rank(NOW) for one in ordered]
    assert ranks == sorted(ranks)
    for rank in set(ranks):
        group = [one for one in ordered if one.rank(NOW) == rank]
        turns = [sum(other.owner == one.owner for other in group[:at]) for at, one in enumerate(group)]
        assert turns == sorted(turns)
        for owner in {one.owner for one in group}:
            own = [one.lease for one in group if one.owner == owner]
            assert own == sorted(own)


@given(line=lines.filter(bool), data=st.data())
def test_another_passes_at_most_once(line, data) -> None:
    """Whatever else comes, a user's first request is granted before anybody has had two turns since."""
    line = [waiting(one.lease, one.owner) for one in line]
    mine = data.draw(st.sampled_from([one for one in line if one == in_order(line, NOW)[0]] + line))
    mine = next(one for one in line if one.owner == mine.owner)
    served: dict[int, int] = {}
    turns: dict[int, int] = {}
    number, lease = 0, 100
    while True:
        first = in_order(line, NOW, served)[0]
        number += 1
        served[first.owner] = number
        line.remove(first)
        if first.owner == mine.owner:
            break
        turns[first.owner] = turns.get(first.owner, 0) + 1
        lease += 1
        line.append(waiting(lease, first.owner))  # asks again at once
    assert all(number == 1 for number in turns.values())


def test_low_ages_into_normal() -> None:
    """After an hour it stands where it came; nothing becomes `high` by waiting."""
    low, new = waiting(1, 1, of(Priority.LOW), NOW - AGING_NS), waiting(2, 2)
    high = waiting(3, 3, of(Priority.HIGH))
    assert in_order([low, new, high], NOW) == [high, low, new]
    assert in_order([low, new, high], NOW - 1) == [high, new, low]


def test_positions_count_those_who_need_the_same() -> None:
    """One who waits for another device is not before one."""
    a, b = frozenset("a"), frozenset("b")
    assert positions([(1, a), (2, b), (3, a), (4, a | b)]) == {1: 1, 2: 1, 3: 2, 4: 4}


@pytest.mark.parametrize("kind", ["mi210", "mi300x-cpx"])
@given(asked=crowds, wanted=large, newcomer=small, end=ends)
def test_nobody_passes_who_delays(machines, new_node, kind, asked, wanted, newcomer, end) -> None:
    """Beside a newcomer that may pass, the one that waits starts as soon as without it."""
    inventory = machines.partitions(1, 2) if kind == "mi300x-cpx" else machines.node(kind, 2)
    node = crowd(new_node(inventory), asked)
    ground, one = Ground(node.inventory), waiting(100, request=wanted)
    every = {device.key for device in node.inventory.devices}
    before = outlook(ground, one, node.held, 0, every)
    placed = place(node.inventory, tuple(node.held), newcomer)
    if before is None:
        assert ground.place(one, (), every) is None, "it could wait for all to end"
        return
    if isinstance(placed, Refusal):
        return
    kept = Reservation(one, before, NOW)
    if leaves(kept, ground, node.held, placed, end):
        beside = [*node.held, *(HeldSlice(0, 200, 2, each, SliceState.HELD, end) for each in placed)]
        after = outlook(ground, one, beside, 0, before.devices)
        assert after is not None
        if before.starts_ns is not None:
            assert after.starts_ns is not None
            assert after.starts_ns <= before.starts_ns
        else:
            gone = [each for each in beside if each.lease not in before.ends]
            assert ground.place(one, gone, before.devices) is not None


@given(asked=crowds.filter(bool), wanted=large, later=st.lists(st.tuples(small, ends), max_size=12))
def test_who_waits_does_not_starve(machines, new_node, asked, wanted, later) -> None:
    """However many come after it: once those that were there before have ended, it fits."""
    node = crowd(new_node(machines.node("mi210", 2)), asked)
    ground, every = Ground(node.inventory), {device.key for device in node.inventory.devices}
    one = waiting(node.leases + 1, request=wanted)
    old = sorted({each.lease for each in node.held})
    node.leases += 1
    on = every
    while True:
        ahead = outlook(ground, one, node.held, 0, on) or outlook(ground, one, node.held, 0, every)
        assert ahead is not None
        on = ahead.devices
        while later:  # as many as may pass
            request, end = later.pop()
            placed = place(node.inventory, tuple(node.held), request)
            if not isinstance(placed, Refusal) and leaves(
                Reservation(one, ahead, NOW), ground, node.held, placed, end
            ):
                node.ask(request, end)
                break
        if not old:
            break
        ended = old.pop(0)  # and with it all of those that were to end by then
        node.free(ended)
    passed = [each.lease for each in node.held if each.ends_ns is not None]
    for lease in passed:
        node.free(lease)
    assert ground.place(one, node.held, every) is not None


def test_quarantine_is_no_end(machines, new_node) -> None:
    """Nobody waits for what may never come clean; what is being cleaned is as good as free."""
    node = crowd(new_node(machines.node("mi210", 1)), [(Request(), None)])
    ground, key = Ground(node.inventory), node.inventory.devices[0].key
    node.mark(1, SliceState.QUARANTINED)
    assert outlook(ground, waiting(2), node.held, 7, {key}) is None
    node.mark(1, SliceState.CLEANING)
    assert outlook(ground, waiting(2), node.held, 7, {key}).starts_ns == 7


def test_known_ends_come_before_unknown_ones(machines, new_node) -> None:
    """It waits for the device that is free first, as far as that is known; else for the oldest lease."""
    node = crowd(new_node(machines.node("mi210", 3)), [(Request(), None), (Request(), 20), (Request(), 10)])
    ground, keys = Ground(node.inventory), [device.key for device in node.inventory.devices]
    assert outlook(ground, waiting(9), node.held, 0, keys) == Outlook(
        frozenset({keys[2]}), frozenset({node.held[2].placed.pool}), frozenset({3}), 10
    )
    both = outlook(ground, waiting(9, request=Request((SliceRequest(count=3),))), node.held, 0, keys)
    assert (both.ends, both.starts_ns) == ({1, 2, 3}, None)


def test_partitions_of_one_pool_are_kept_together(machines, new_node) -> None:
    """VRAM is the pool's: of a neighbour's partition nothing is unkept."""
    node = crowd(new_node(machines.partitions(2, 2)), [(Request(), None)])
    ground, keys = Ground(node.inventory), [device.key for device in node.inventory.devices]
    found = outlook(ground, waiting(2), node.held, 0, keys[:1])
    kept = Reservation(waiting(2), found, NOW)
    assert unkept(node.inventory, [kept]) == set(keys[2:])


@pytest.mark.parametrize("kind", list(HolderKind))
@pytest.mark.parametrize("comes", list(Priority))
@pytest.mark.parametrize("waits", list(Priority))
def test_whom_a_reservation_binds(kind, comes, waits) -> None:
    """Requests of the same priority or a lower one, until its time is over; never a job of Slurm's."""
    kept = Reservation(
        waiting(1, request=of(waits)), Outlook(frozenset(), frozenset(), frozenset(), None), NOW + 1
    )
    order = list(Priority)
    bound = kind is not HolderKind.SLURM and order.index(comes) >= order.index(waits)
    assert kept.binds(of(comes), kind, NOW) is bound
    assert not kept.binds(of(comes), kind, NOW + 1)


def test_the_refusal_names_who_waits(machines) -> None:
    """It says which lease, on which devices, and until when at most."""
    kept = Reservation(waiting(7), Outlook(frozenset({"b", "a"}), frozenset(), frozenset(), None), 99)
    refusal = kept_back([kept])
    assert (refusal.code, refusal.blockers, refusal.earliest_ns) == (Code.CARD_RESERVED, (7,), 99)
    assert "lease 7, which waits for a, b" in refusal.why
    assert [one.device for one in refusal.devices] == ["a", "b"]
