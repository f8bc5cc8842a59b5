"""Partition modes that a site wants, and partitions taken as slices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.domain.environment import guarantee_of
from nodeagent.domain.errors import InvalidField
from nodeagent.domain.guarantee import Compute
from nodeagent.domain.partition import Card, Modes, Switch, choices, devices_in
from nodeagent.domain.placement import place
from nodeagent.domain.refusals import Code, Refusal
from nodeagent.domain.request import Request, SliceRequest

MODES = Modes("SPX", ("SPX", "DPX", "QPX", "CPX"), "NPS1", ("NPS1", "NPS4"), "CAPPING")
CARDS = (
    Card("0000:05:00.0", "AMD Instinct MI300X", "gfx942", MODES),
    Card("0000:27:00.0", "AMD Instinct MI300X", "gfx942", replace(MODES, compute="CPX")),
    Card("0000:47:00.0", "AMD Instinct MI210", "gfx90a", Modes()),
)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, []),
        ({"MI300X": "cpx"}, [("0000:05:00.0", "CPX", False), ("0000:27:00.0", "CPX", True)]),
        ({"05:00.0": "spx", "gfx942": "cpx"}, [("0000:05:00.0", "SPX", True), ("0000:27:00.0", "CPX", True)]),
        (
            {"MI3*": "spx", "0000:05:00.0": "DPX"},
            [("0000:05:00.0", "DPX", False), ("0000:27:00.0", "SPX", False)],
        ),
        ({"MI300A": "cpx", "0000:99:00.0": "cpx"}, []),
    ],
)
def test_a_card_is_wanted_by_address_before_its_kind(wanted, found) -> None:
    """What the settings say of one card goes before what they say of its product; others' are no matter."""
    assert [(one.card.pci, one.mode, one.met) for one in choices(wanted, CARDS)] == found


def test_what_a_card_cannot_be_is_a_choice_that_is_wrong() -> None:
    """A mode that it has not, and modes on a card that has none: told, never met."""
    first, *_, last = choices({"gfx942": "tpx", "gfx90a": "cpx"}, CARDS)
    assert (first.met, first.wrong) == (
        False,
        "'tpx' is no mode that the card 0000:05:00.0 can take; it has SPX, DPX, QPX, CPX in NPS1",
    )
    assert last.wrong == "the card 0000:47:00.0 has no compute partition modes"


def test_a_card_on_its_way_is_not_there_yet() -> None:
    """What is being switched is as nobody wants it."""
    (choice,) = choices({"0000:05:00.0": "spx"}, [replace(CARDS[0], switching="SPX")])
    assert not choice.met


@pytest.mark.parametrize(("mode", "count"), [("SPX", 1), ("DPX", 2), ("TPX", 3), ("QPX", 4), ("CPX", 6)])
def test_a_mode_makes_so_many_devices(mode, count) -> None:
    """CPX makes one of each XCC: eight of an MI300X, six of an MI300A."""
    assert devices_in(mode, 6) == count


@pytest.mark.parametrize("told", [{}, {"pci": "x"}, None, 3, {**dict.fromkeys(Switch.__slots__, 1)}])
def test_a_kept_switch_is_checked(told) -> None:
    """What was not written by an agent is no switch."""
    with pytest.raises((TypeError, ValueError)):
        Switch.of(told)


def test_a_partition_is_taken_whole_and_for_oneself(machines) -> None:
    """Never a card that is not divided, never a part; the hardware holds it."""
    node = machines.partitions(1, 2)
    share = node.pools[0].grantable_bytes // 2
    node = replace(node, devices=tuple(replace(one, even_bytes=share) for one in node.devices))
    whole = machines.device("mi300x-spx", 5, compute_partition="SPX")
    node = replace(node, devices=(whole, *node.devices), pools=(*node.pools, *machines.of([whole]).pools))
    placed = place(node, (), Request((SliceRequest(partition=True, count=2),)))
    assert not isinstance(placed, Refusal)
    assert [one.device for one in placed] == ["0000:11:00.0/0", "0000:11:00.0/1"]
    assert all(one.whole and one.exclusive for one in placed)
    assert guarantee_of(placed, node).compute is Compute.PARTITION
    refusal = place(node, (), Request((SliceRequest(partition=True, count=3),)))
    assert isinstance(refusal, Refusal)
    assert Code.CARD_TYPE_MISMATCH in {one.code for one in refusal.devices}


@pytest.mark.parametrize("part", [{"cus": 8}, {"vram_bytes": 1}, {"cu_percent": 5.0}, {"cu_shared": True}])
def test_a_part_of_a_partition_is_asked_for_otherwise(machines, part) -> None:
    """A slice of a device that happens to be a partition is an ordinary slice."""
    with pytest.raises(InvalidField, match="partition: is whole"):
        place(machines.partitions(1, 2), (), Request((SliceRequest(partition=True, **part),)))


def test_partitions_that_may_each_take_all_get_an_even_share(machines) -> None:
    """Allocation mode ALL: each lists all of the memory, and one with all of it would leave none."""
    node = machines.partitions(1, 4)
    share = node.pools[0].grantable_bytes // 4
    node = replace(node, devices=tuple(replace(one, even_bytes=share) for one in node.devices))
    placed = place(node, (), Request((SliceRequest(partition=True, count=4),)))
    assert not isinstance(placed, Refusal)
    assert {one.vram_bytes for one in placed} == {share}
