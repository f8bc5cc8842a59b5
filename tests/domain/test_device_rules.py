"""What a site says of single devices, and how many leases share one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.domain.device_rules import DeviceRules, chosen, usual_shares
from nodeagent.domain.lease import SliceState
from nodeagent.domain.refusals import Code, Refusal
from nodeagent.domain.request import Policy, Request, SliceRequest
from nodeagent.domain.shards import best, worth

GIB = 1 << 30
SMALL = Request((SliceRequest(cus=8, vram_bytes=GIB, queue_slots=1),))
SHARED = Request((SliceRequest(cu_shared=True, vram_bytes=GIB, queue_slots=1),))


def shared_by(machines, most: int, count: int = 1):
    return machines.node("mi300x-spx", count, shares=most)


@pytest.mark.parametrize(
    ("gfx", "most"), [("gfx1200", 2), ("gfx1201", 2), ("gfx1100", 10), ("gfx942", 10), (None, 10)]
)
def test_the_usual_share_count_is_two_on_gfx12(gfx: str | None, most: int) -> None:
    """Ten elsewhere, also where the kernel does not say what it is."""
    assert usual_shares(gfx) == most


def test_a_device_has_the_usual_share_count_until_the_site_says_another(machines) -> None:
    """Rules without a word on a device leave it what is usual for its target."""
    assert DeviceRules().on(machines.device("r9700")).shares == 2
    assert DeviceRules({"MI300X": 3}).on(machines.device("r9700")).shares == 2
    assert DeviceRules({"gfx1201": 4}).on(machines.device("r9700")).shares == 4


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ({}, None),
        ({"MI210": 1}, None),
        ({"*": 1}, 1),
        ({"*": 1, "gfx942": 2}, 2),
        ({"gfx9*": 1, "*": 5}, 1),
        ({"gfx942": 1, "MI300X": 2}, 1),
        ({"MI300X": 2, "0000:11:00.0": 3}, 3),
        ({"0000:12:00.0": 3}, None),
        ({"MI300": 3}, None),
    ],
)
def test_the_nearest_key_counts(machines, table, found) -> None:
    """A device's own name before product and target, these before a glob; never a substring."""
    assert chosen(table, machines.device("mi300x-spx")) == found


def test_no_more_leases_share_a_device_than_may(machines, new_node) -> None:
    """The next one is refused with the count, who shares it, when one ends, and what helps."""
    card = new_node(shared_by(machines, 2))
    card.ask(SMALL, ends_ns=900)
    card.ask(SHARED, ends_ns=700)
    no = card.ask(SMALL)
    assert isinstance(no, Refusal)
    assert (no.code, no.blockers, no.earliest_ns) == (Code.TIME_SLICING_EXHAUSTED, (1, 2), 700)
    assert "2 leases share it, and 2 may; held by lease 1, lease 2" in no.why
    assert "wait for lease 1, 2 with --wait" in no.next_act
    assert "ask for less" not in no.next_act


def test_leases_on_the_shared_set_count_too(machines, new_node) -> None:
    """They have the same CUs, and take their turns on the device like all others."""
    card = new_node(shared_by(machines, 3))
    assert [isinstance(card.ask(SHARED), Refusal) for _ in range(4)] == [False, False, False, True]


@pytest.mark.parametrize("state", [SliceState.CLEANING, SliceState.QUARANTINED])
def test_a_lease_shares_the_device_until_its_slice_is_free(machines, new_node, state) -> None:
    """What is not proved clean may still have queues there."""
    card = new_node(shared_by(machines, 1))
    card.ask(SMALL)
    card.mark(1, state)
    assert isinstance(card.ask(SMALL), Refusal)
    card.free(1)
    assert not isinstance(card.ask(SMALL), Refusal)


def test_a_slice_of_an_earlier_epoch_counts(machines, new_node) -> None:
    """Its programs are still on the device, whatever became of its numbers."""
    card = new_node(shared_by(machines, 1))
    card.ask(SMALL)
    card.inventory = machines.node("mi300x-spx", 1, shares=1, epoch=2)
    assert isinstance(card.ask(SMALL), Refusal)


def test_placement_takes_a_device_that_fewer_share(machines, new_node) -> None:
    """Binpack goes on with the next device once the first one is full by count."""
    node = new_node(shared_by(machines, 2, count=2))
    went = [node.ask(SMALL)[0].device for _ in range(4)]
    assert went == [node.inventory.devices[0].key] * 2 + [node.inventory.devices[1].key] * 2


def test_who_wants_a_device_alone_hears_of_that_first(machines, new_node) -> None:
    """An exclusive request is not told of a count that does not matter to it."""
    card = new_node(shared_by(machines, 1))
    card.ask(SMALL)
    no = card.ask(replace(SMALL, placement=Policy.EXCLUSIVE))
    assert no.code is Code.EXCLUSIVE_CONFLICT


def test_slurms_shards_are_no_more_than_may_share(machines) -> None:
    """What gres.conf promises as single shards can all be granted."""
    card = machines.device("mi300x-spx")
    assert worth(replace(card, shares=5), card.geometry, 8).fits == 5
    free = best(card, card.geometry).shards
    assert best(replace(card, shares=free - 1), card.geometry).shards < free
