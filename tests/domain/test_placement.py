"""Where slices go, and what a refusal says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.domain.device import DeviceState
from nodeagent.domain.errors import InvalidField
from nodeagent.domain.lease import SliceState
from nodeagent.domain.placement import place
from nodeagent.domain.refusals import Code, Refusal
from nodeagent.domain.request import Policy, Request, Shape, SliceRequest

GIB = 1 << 30


def ask(*slices: SliceRequest, **rest) -> Request:
    return Request(slices or (SliceRequest(),), **rest)


def keys(answer) -> list[str]:
    assert isinstance(answer, tuple), answer
    return [one.device for one in answer]


def refused(answer) -> Refusal:
    assert isinstance(answer, Refusal), answer
    return answer


@pytest.fixture
def card(machines, new_node):
    return new_node(machines.node("mi300x-spx"))


@pytest.mark.parametrize(
    ("asked", "count", "effective", "whole"),
    [
        (SliceRequest(cu_percent=25), 64, 64, False),
        (SliceRequest(cu_percent=25, shape=Shape.EXACT), 76, 72, False),
        (SliceRequest(cu_percent=1), 8, 8, False),
        (SliceRequest(cu_percent=100), 304, 256, True),
        (SliceRequest(), 304, 256, True),
    ],
)
def test_an_idle_mi300x_gives(card, asked, count, effective, whole) -> None:
    """Every figure of an idle MI300X; all of its CUs count at the worst harvest, two lost in one engine."""
    (got,) = card.ask(ask(asked))
    assert (len(got.cus), got.effective_cus, got.whole) == (count, effective, whole)


def test_four_quarters_fit_and_a_fifth_is_refused_with_figures(card) -> None:
    """The refusal says what is asked, what is free, who holds the rest and when the first of them ends."""
    quarter = ask(SliceRequest(cu_percent=25, vram_bytes=GIB))
    for end in (None, 900, 700, 800):
        keys(card.ask(quarter, ends_ns=end))
    before = list(card.held)
    no = refused(card.ask(quarter))
    assert no.code is Code.INSUFFICIENT_CORE
    assert "asks 76 CUs (granted as 64), 48 of 304 free (largest even block 32)" in no.why
    assert no.blockers == (1, 2, 3, 4)
    assert no.earliest_ns == 700
    assert "wait for lease 1, 2, 3" in no.next_act
    assert card.held == before


def test_more_than_a_device_has_is_blocked_by_nobody(card) -> None:
    """What no idle device could give names no lease to wait for."""
    card.ask(ask(SliceRequest(cu_percent=25, vram_bytes=GIB)))
    for asked, code in (
        (SliceRequest(cus=305, vram_bytes=GIB), Code.INSUFFICIENT_CORE),
        (SliceRequest(cus=8, vram_bytes=64 * GIB), Code.INSUFFICIENT_MEMORY),
        (SliceRequest(cus=8, vram_bytes=GIB, queue_slots=25), Code.TIME_SLICING_EXHAUSTED),
    ):
        no = refused(card.ask(ask(asked)))
        assert (no.code, no.blockers) == (code, ())
        assert "even when idle" in no.next_act


def test_a_node_without_devices_says_so(machines) -> None:
    """No AMD GPU is an answer of its own, not a lack of free ones."""
    assert refused(place(machines.of(()), (), ask())).code is Code.NO_DEVICE


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (DeviceState.UNHEALTHY, Code.CARD_NOT_HEALTH),
        (DeviceState.EXCLUDED, Code.CARD_NOT_HEALTH),
        (DeviceState.GONE, Code.CARD_NOT_HEALTH),
        (DeviceState.DRAINING, Code.CARD_CORDONED),
    ],
)
def test_only_a_healthy_device_is_granted_from(machines, state, code) -> None:
    """Any other state refuses with the device's own reason."""
    no = refused(place(machines.node("mi210", state=state, reason="properties: garbled"), (), ask()))
    assert no.code is code
    assert "properties: garbled" in no.why


def test_an_unhealthy_device_asked_for_by_name_is_what_the_refusal_tells(machines) -> None:
    """Seven devices that were not asked for do not hide that the one asked for is sick."""
    node = machines.node("mi210", 8)
    sick = replace(node.devices[3], state=DeviceState.UNHEALTHY, reason="no VRAM size", geometry=None)
    node = machines.of([*node.devices[:3], sick, *node.devices[4:]])
    no = refused(place(node, (), ask(SliceRequest(device=(sick.key,)))))
    assert no.code is Code.CARD_NOT_HEALTH
    assert {one.code for one in no.devices} == {Code.CARD_NOT_HEALTH, Code.CARD_UUID_MISMATCH}


def test_a_type_that_no_device_has_is_a_normal_refusal(machines) -> None:
    """MI300 fits no MI300X (Project-HAMi/HAMi#295), and the refusal says which products there are."""
    no = refused(place(machines.node("mi300x-spx", 8), (), ask(SliceRequest(type=("MI300",)))))
    assert no.code is Code.CARD_TYPE_MISMATCH
    assert "MI300X" in no.why
    assert len(no.devices) == 8


def test_a_named_device_that_is_unknown_is_a_bad_field(card) -> None:
    """A wrong id is no refusal to wait on (ROCm/container-toolkit#116)."""
    with pytest.raises(InvalidField, match=r"slices\[0\]\.device"):
        card.ask(ask(SliceRequest(device=("GPU-1",))))


def test_an_exclusive_slice_needs_an_idle_device_and_keeps_it(card) -> None:
    """Nobody joins an exclusive slice, and it joins nobody."""
    keys(card.ask(ask(SliceRequest(cu_percent=1, vram_bytes=GIB))))
    for request in (ask(), ask(SliceRequest(cu_percent=1), placement=Policy.EXCLUSIVE)):
        assert refused(card.ask(request)).code is Code.EXCLUSIVE_CONFLICT
    card.free(1)
    (got,) = card.ask(ask(SliceRequest(cu_percent=1, vram_bytes=GIB), placement=Policy.EXCLUSIVE))
    assert got.exclusive
    no = refused(card.ask(ask(SliceRequest(cu_percent=1, vram_bytes=GIB))))
    assert (no.code, no.blockers) == (Code.EXCLUSIVE_CONFLICT, (2,))


@pytest.mark.parametrize("state", [SliceState.CLEANING, SliceState.QUARANTINED])
def test_a_slice_that_is_not_clean_blocks_and_is_named(card, state) -> None:
    """What is being cleaned or quarantined is held, and the refusal says so."""
    card.ask(ask())
    card.mark(1, state)
    no = refused(card.ask(ask()))
    assert no.blockers == (1,)
    assert f"lease 1 ({state})" in no.why


def test_slices_of_an_old_epoch_hold_bytes_but_no_cus(card) -> None:
    """After a partition change old slices still bind their pool and keep the device from being exclusive."""
    card.ask(ask(SliceRequest(cu_percent=50)))
    card.held = [replace(one, placed=replace(one.placed, epoch=0)) for one in card.held]
    assert refused(card.ask(ask())).code is Code.EXCLUSIVE_CONFLICT
    no = refused(card.ask(ask(SliceRequest(cus=8, vram_percent=60))))
    assert no.code is Code.INSUFFICIENT_MEMORY
    (got,) = card.ask(ask(SliceRequest(cu_percent=25, vram_bytes=GIB)))
    assert got.cus.runs().__next__() == (0, 63)


def test_partitions_share_the_bytes_of_their_pool(machines, new_node) -> None:
    """Bytes are capped per pool: two partitions cannot both have most of their card's VRAM."""
    node = new_node(machines.partitions(1, 2))
    request = ask(SliceRequest(cu_percent=25, vram_percent=60))
    keys(node.ask(request))
    no = refused(node.ask(request))
    assert (no.code, no.blockers) == (Code.INSUFFICIENT_MEMORY, (1,))
    both = refused(place(machines.partitions(1, 2), (), ask(replace(request.slices[0], count=2))))
    assert both.code is Code.INSUFFICIENT_MEMORY
    spread = place(machines.partitions(2, 2), (), ask(replace(request.slices[0], count=2)))
    assert len({one.pool for one in spread}) == 2


def test_shared_slices_have_one_shared_set(card) -> None:
    """Memory-only leases of a device all get the same CUs, which nobody else gets."""
    request = ask(SliceRequest(cu_shared=True, vram_bytes=GIB))
    (first,), (second,) = card.ask(request), card.ask(request)
    (other,) = card.ask(ask(SliceRequest(cu_percent=50, vram_bytes=GIB)))
    assert first.cus == second.cus
    assert len(first.cus) == 64
    assert not other.cus & first.cus
    card.free(1)
    (third,) = card.ask(request)
    assert third.cus == second.cus


def test_queue_slots_run_out_like_anything_else(card) -> None:
    """More queues than the hardware has would slow down everybody on the device."""
    keys(card.ask(ask(SliceRequest(cus=8, vram_bytes=GIB, queue_slots=20))))
    no = refused(card.ask(ask(SliceRequest(cus=8, vram_bytes=GIB, queue_slots=5))))
    assert no.code is Code.TIME_SLICING_EXHAUSTED
    assert "asks 5 queue slots, 4 of 24 free" in no.why


def test_slices_of_one_lease_lie_on_different_devices(machines) -> None:
    """A lease of several slices of different sizes takes a device for each, in the request's order."""
    node = machines.node("mi210", 3)
    got = place(node, (), ask(SliceRequest(count=2, cu_percent=25), SliceRequest(device=("renderD128",))))
    assert len(set(keys(got))) == 3
    assert keys(got)[2] == node.devices[0].key
    assert [one.exclusive for one in got] == [False, False, True]


def test_more_slices_than_devices_are_refused(machines) -> None:
    """Fewer devices that fit than slices asked, alone or over several kinds of slice, is its own code."""
    node = machines.node("mi210", 2)
    for request in (
        ask(SliceRequest(count=3)),
        ask(SliceRequest(count=2, cu_percent=25), SliceRequest(cu_percent=25)),
        ask(SliceRequest(device=("renderD128",)), SliceRequest(device=("renderD128",))),
    ):
        assert refused(place(node, (), request)).code is Code.INSUFFICIENT_DEVICE


def test_more_devices_than_the_node_has_are_not_waited_for(machines) -> None:
    """What no wait can bring is not told to wait."""
    answer = refused(place(machines.node("mi210", 2), (), ask(SliceRequest(count=3))))
    assert answer.next_act == "ask for fewer devices: the node has no more"


def test_some_devices_that_fit_but_too_few_name_the_blockers(machines, new_node) -> None:
    """The refusal counts the devices that fit and names who holds the others."""
    node = new_node(machines.node("mi210", 2))
    node.ask(ask())
    no = refused(node.ask(ask(SliceRequest(count=2))))
    assert no.code is Code.INSUFFICIENT_DEVICE
    assert no.blockers == (1,)
    assert "asks 2 devices, 1 of the node's 2 fit now" in no.why


def test_the_same_state_and_request_give_the_same_answer(machines, new_node) -> None:
    """Placement has no memory and no chance in it."""
    node = new_node(machines.hives())
    node.ask(ask(SliceRequest(count=2, cu_percent=30)))
    request = ask(SliceRequest(count=3, cu_percent=30), placement=Policy.TOPOLOGY)
    assert place(node.inventory, node.held, request) == place(node.inventory, node.held, request)
