"""Devices as bars of cells."""

import io
from typing import Any

import pytest

from gpulease.drawing import BEYOND, LETTERS, cell_size, draw, letters, members
from gpulease.models import Device, Lease, Node
from gpulease.screen import Screen
from gpulease.show import show_lease, show_status


def lease(number: int, cus: Any, *, state: str = "held", count: int = 0) -> Lease:
    one = {"device": "d/0", "cus": cus, "cu_count": count or len(members(cus or "")), "state": state}
    return Lease.from_raw({"id": number, "state": "active", "slices": [one]})


def device(cus: int, row: int = 1) -> Device:
    return Device.from_raw({"device": "d/0", "cus": cus, "row": row})


def bar(leases: list[Lease], cus: int = 16, width: int = 16) -> str:
    return draw(device(cus), leases, letters(leases), width).cells


def test_two_leases() -> None:
    """Each lease has its letter where its CUs are, and free CUs are dots."""
    assert bar([lease(7, "0-3"), lease(9, "8-11,14")]) == "aaaa····bbbb··b·"


def test_a_place_in_the_queue() -> None:
    """One who waits is told its turn and its earliest start, as far as the agent knows them."""
    raw = {"id": 7, "state": "queued", "queue": {"position": 2, "earliest_at": "2031-05-04T10:00:00.000Z"}}
    assert str(Lease.from_raw(raw).queue) == "number 2, not before 2031-05-04T10:00:00.000Z"
    assert str(Lease.from_raw({**raw, "queue": {"position": 1}}).queue) == "next"
    assert str(Lease.from_raw({**raw, "queue": {"position": None}}).queue) == ""
    assert Lease.from_raw({**raw, "queue": None}).queue is None
    assert Lease.from_raw({**raw, "queue": {"position": "\x1b"}}).queue.turn is None


def test_quarantined() -> None:
    """A quarantined slice is an exclamation mark, also where it is only a part of a cell."""
    assert bar([lease(7, "0-3"), lease(9, "5", state="quarantined")], width=4) == "a!··"


def test_shared() -> None:
    """CUs that several leases have are marked as the shared set."""
    assert bar([lease(7, "0-3"), lease(9, "0-3")], cus=8) == "++++····"


def test_masked() -> None:
    """A lease that hides which CUs it has is drawn where there is room, and that is said."""
    leases = [lease(7, "2-3"), lease(9, None, count=3)]
    drawn = draw(device(8), leases, letters(leases), 8)
    assert (drawn.cells, drawn.guessed) == ("bbaab···", True)


def test_small_leases_stay_visible() -> None:
    """Of two leases with as much of a cell the one less seen is drawn."""
    assert bar([lease(7, "0-3"), lease(9, "4-5"), lease(10, "6-7")], width=4) == "ab··"
    assert bar([lease(7, "0-5"), lease(9, "6-7")], width=4) == "ab··"


@pytest.mark.parametrize(
    ("cus", "row", "width", "size"),
    [(304, 32, 50, 8), (304, 32, 400, 1), (38, 4, 40, 1), (104, 8, 20, 8), (64, 7, 10, 7), (0, 0, 10, 1)],
)
def test_cell_size(cus: int, row: int, width: int, size: int) -> None:
    """A cell is a whole part or multiple of the row where that fits."""
    assert cell_size(device(cus, row), width) == size


def test_more_leases_than_letters() -> None:
    """Beyond the letters and digits all leases share one mark."""
    many = [lease(n, "") for n in range(len(LETTERS) + 2)]
    assert list(letters(many).values())[-2:] == [BEYOND, BEYOND]


@pytest.mark.parametrize("cus", ["x", "3-", "-", "1-99999999999", "5-2", "٣"])
def test_garbled_lists(cus: str) -> None:
    """A CU list that is none draws nothing and breaks nothing."""
    assert set(bar([lease(7, cus)])) <= {"·", "a"}


def test_an_idle_lease_is_told_as_such() -> None:
    """Beside its state in lists, and with its end in `gpulease show`."""
    out = io.StringIO()
    raw = {"id": 7, "state": "active", "idle": {"since": "2031-05-04T10:00:00.000Z", "ends_at": None}}
    show_lease(Screen(out), Lease.from_raw(raw))
    assert "  idle      since 2031-05-04T10:00:00.000Z\n" in out.getvalue()
    raw["idle"] = {"since": "2031-05-04T10:00:00.000Z", "ends_at": "2031-05-04T10:10:00.000Z"}
    show_lease(Screen(out), Lease.from_raw(raw))
    assert "since 2031-05-04T10:00:00.000Z, ends 2031-05-04T10:10:00.000Z unless it works" in out.getvalue()
    node = Node.from_raw({})
    show_status(Screen(out), node, [], [Lease.from_raw(raw)])
    assert "active: idle" in out.getvalue()
