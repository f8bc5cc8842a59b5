"""What a card's counters come to: errors that nobody acknowledged, a link below par, and what follows."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from nodeagent.domain.device import DeviceState
from nodeagent.domain.vitals import CardRecord, HealthPolicy, LinkEnd, Vitals, complaint

FULL = LinkEnd("0000:11:00.0", 16, 16, 32.0, 32.0)
PCI = FULL.address
SICK = CardRecord({"umc": 2, "gfx": 0}, {}, None)
SLOW = CardRecord(link="x8 of x16 at 0000:11:00.0")


@pytest.mark.parametrize(
    ("changes", "gfx", "lacks"),
    [
        ({}, "gfx942", None),
        ({"width": 8}, "gfx1201", "x8 of x16 at 0000:11:00.0"),
        ({"width": None}, "gfx942", None),
        ({"most_width": None}, "gfx942", None),
        ({"speed": 2.5}, "gfx90a", "2.5 of 32 GT/s at 0000:11:00.0"),
        ({"speed": 2.5}, "gfx1100", None),
        ({"speed": 2.5}, None, None),
        ({"speed": None}, "gfx942", None),
        ({"width": 4, "speed": 8.0}, "gfx942", "x4 of x16 at 0000:11:00.0; 8 of 32 GT/s at 0000:11:00.0"),
    ],
)
def test_a_link_lacks_lanes_or_speed(changes, gfx, lacks) -> None:
    """Speed counts only on cards that keep it when idle; what is not told lacks nothing."""
    assert Vitals(links=(FULL, replace(FULL, **changes))).degraded(gfx) == lacks


def test_errors_are_those_beyond_what_was_acknowledged() -> None:
    """By block: an error in another block is a new one, however many were acknowledged elsewhere."""
    known = CardRecord({"umc": 3, "gfx": 1}, {"umc": 3}, None)
    assert known.errors == {"gfx": 1}
    assert known.noted().errors == {}
    assert known.noted().after(Vitals({"umc": 4, "gfx": 1}), None).errors == {"umc": 1}


def test_what_could_not_be_read_is_as_it_was() -> None:
    """A card that tells nothing of its blocks or of its link is no better than before."""
    known = replace(SICK, link="x8 of x16")
    assert known.after(Vitals(), "gfx942") == known
    assert known.after(Vitals({"sdma": 1}), None).errors == {"sdma": 1, "umc": 2}
    assert known.after(Vitals(links=(FULL,)), "gfx942").link is None


def test_counts_that_begin_anew_were_acknowledged_by_nobody() -> None:
    """A driver that was loaded again counts from 0: its first error is one, though five were known."""
    known = CardRecord({"umc": 5}, {"umc": 5}, None)
    fresh = known.after(Vitals({"umc": 0}), None)
    assert fresh.errors == {}
    assert fresh.after(Vitals({"umc": 1}), None).errors == {"umc": 1}
    assert known.after(Vitals({"umc": 3}), None).errors == {"umc": 3}


@pytest.mark.parametrize(
    ("record", "policy", "state"),
    [
        (SICK, HealthPolicy(), DeviceState.UNHEALTHY),
        (SICK, HealthPolicy(refuse_uncorrectable=False), DeviceState.HEALTHY),
        (SLOW, HealthPolicy(), DeviceState.HEALTHY),
        (SLOW, HealthPolicy(refuse_degraded=True), DeviceState.UNHEALTHY),
        (replace(SICK, link="x8"), HealthPolicy(False, True), DeviceState.UNHEALTHY),
    ],
)
def test_the_site_says_what_a_card_is_not_granted_from(machines, record, policy, state) -> None:
    """Uncorrectable errors close it by default, a link does not; either way the reason is there."""
    node = policy.mark(machines.node("mi210", 2), {PCI: record})
    assert [one.state for one in node.devices] == [state, DeviceState.HEALTHY]
    assert node.devices[0].reason == complaint(PCI, record)
    assert node.devices[1].reason is None


def test_the_reason_says_what_to_do(machines) -> None:
    """Which blocks, and the command that takes the errors as known; of the link, what to look at."""
    said = complaint(PCI, replace(SICK, link=SLOW.link))
    assert "umc 2: have the card reset or replaced; `nodeagent clear 0000:11:00.0`" in said
    assert "gfx 0" not in said
    assert "x8 of x16 at 0000:11:00.0: reseat the card" in said


def test_every_partition_of_a_sick_card_is_sick(machines) -> None:
    """They share its memory."""
    node = HealthPolicy().mark(machines.partitions(2, 3), {PCI: SICK})
    assert [one.state == "unhealthy" for one in node.devices] == [True] * 3 + [False] * 3


def test_a_worse_state_keeps_its_reason(machines) -> None:
    """What cannot be read, or is gone, is not told of as if it could be cleared."""
    gone = machines.node("mi210", state=DeviceState.GONE, reason="vanished")
    assert HealthPolicy().mark(gone, {PCI: SICK}) == gone


def test_where_nothing_is_wrong_the_inventory_is_the_same_one(machines) -> None:
    """Each grant asks."""
    node = machines.node("mi210")
    assert HealthPolicy().mark(node, {PCI: CardRecord({"umc": 0})}) is node


def test_a_record_is_kept_and_read_back() -> None:
    """What was acknowledged outlives a restart of the agent."""
    record = replace(SICK.noted(), link="x8")
    assert CardRecord.of(asdict(record)) == record


@pytest.mark.parametrize(
    "told",
    [{"uncorrectable": {"umc": "2"}}, {"acknowledged": {"umc": True}}, {"link": 8}, {"pages": 1}, [], None],
)
def test_what_is_no_record_is_not_believed(told) -> None:
    """A file that was spoiled raises what a reader of kept files expects."""
    with pytest.raises((TypeError, ValueError, AttributeError)):
        CardRecord.of(told)
