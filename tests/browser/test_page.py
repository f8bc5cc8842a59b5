"""The page for everybody: by keyboard, on a phone, in the dark, read aloud; and for who leaves it open."""

from __future__ import annotations

import pytest

from tests.browser.made_up import device, event, lease
from tests.browser.measures import contrasts, nameless, reachable, way_of_the_focus

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PHONE = 360


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, PHONE])
def test_text_stands_out(page, made_up, width, dark):
    """Every text has a contrast of 4.5 or more with what is behind it."""
    page.look(width=width, dark=dark)
    made_up.open()
    page.value("document.getElementById('fault').textContent = 'What is shown may be old'")
    page.value(f"document.getElementById('drain-{device()['device']}').click()")
    measured = contrasts(page)
    assert len(measured) > 200
    assert not [one for one in measured if one["contrast"] < 4.5]


def test_everything_has_a_name(page, made_up):
    """Controls, pictures, tables and landmarks are called something, in the dialog too."""
    made_up.open()
    assert nameless(page) == []
    page.value(f"document.getElementById('drain-{device()['device']}').click()")
    assert nameless(page) == []


def test_the_keyboard_reaches_everything_in_order(page, made_up):
    """Tab goes through the document as it is read, is seen where it is, and scrolls there."""
    made_up.open()
    way = way_of_the_focus(page)
    assert [one["name"] for one in way] == reachable(page)
    assert len(way) > 10
    assert not [one["name"] for one in way if not (one["outlined"] and one["inside"])]


def test_the_first_tab_skips_to_the_devices(page, made_up):
    """Who hears the page need not hear its head each time."""
    made_up.open()
    page.press("Tab")
    page.press("Enter")
    page.until("document.activeElement.id === 'devices'")


def test_the_dialog_takes_and_returns_the_focus(page, made_up):
    """Escape does nothing but close it; what was focused before is focused again."""
    made_up.open()
    key = f"drain-{device()['device']}"
    page.value(f"document.getElementById('{key}').focus()")
    page.press("Enter")
    page.until("document.getElementById('ask').contains(document.activeElement)")
    page.press("Escape")
    page.until(f"document.activeElement.id === '{key}'")
    assert made_up.calls("POST") == []


def test_a_change_leaves_the_focus_where_it_is(page, made_up):
    """Tables are drawn anew under the reader's hands; the button there is the same to the reader."""
    made_up.open()
    page.value("document.getElementById('release-1002').focus()")
    made_up.answers["/v1/leases"]["leases"].append(lease(1010, "200-210"))
    page.until("document.getElementById('lease-1010')")
    assert page.value("document.activeElement.id") == "release-1002"


def test_a_phone_needs_no_sideways_scrolling(page, made_up):
    """Everything fits the width, and each cell of a table says which it is."""
    page.look(width=PHONE, height=740)
    made_up.open()
    assert page.value("document.documentElement.scrollWidth") <= PHONE
    assert page.value("getComputedStyle(document.querySelector('td'), '::before').content") == '"Lease "'


def test_colour_is_never_the_only_sign(page, made_up):
    """Each cell that somebody has bears a letter, each lease its letter, each state its word."""
    made_up.open()
    cells = "[...document.querySelectorAll('svg.map rect')]"
    letters = "document.querySelectorAll('svg.map text.mark')"
    taken = f"{cells}.filter((one) => one.classList.length > 1)"
    assert page.value(f"{taken}.length") == page.value(f"{letters}.length")
    assert page.value(f"{taken}.every((one) => one.nextElementSibling?.textContent.trim().length === 1)")
    marks = page.value(f"[...{letters}].map((one) => one.textContent).join('')")
    assert (marks.count("a"), marks.count("+"), marks.count("!"), marks.count("d")) == (76, 64, 16, 76)
    assert page.value("document.querySelectorAll('svg.map rect.guessed').length") == 76


def test_an_agent_that_is_away_is_said_and_comes_back(page, made_up):
    """What is shown stays, is called old, and is new again by itself."""
    made_up.open()
    made_up.statuses = dict.fromkeys(made_up.answers, 503)
    page.until("document.getElementById('fault').textContent.startsWith('What is shown may be old')")
    made_up.statuses = {}
    page.until("document.getElementById('fault').textContent === ''")


def test_what_is_switched_off_is_said(page, made_up):
    """A bypass and a drain of the whole node stand above everything, with their reasons."""
    node = made_up.answers["/v1/node"]
    node["bypass"] = {"until": "2031-05-04T12:00:00.000Z", "reason": "driver update"}
    node["drains"] = [{"device": None, "reason": "move"}, {"device": "x/0", "reason": "fan"}]
    made_up.open()
    shown = page.value("document.getElementById('warnings').innerText").split("\n\n")
    assert shown == ["The node drains: move", "Bypassed until 2031-05-04 12:00:00: driver update"]


def test_an_event_that_comes_again_is_counted(page, made_up):
    """The agent puts one in the place of the older: it is shown once, with how often."""
    first, again = "2031-05-04T10:00:00.123Z", "2031-05-04T10:05:00.000Z"
    events = made_up.answers["/v1/events"]
    events["events"] = [event(1, "refused", at=first), event(2)]
    made_up.open()
    page.until("document.querySelectorAll('#event-list tbody tr').length === 2")
    events.update(events=[event(3, "refused", at=again, first_at=first, count=2)], next=3)
    page.until("document.getElementById('event-list').textContent.includes('refused ×2')")
    assert page.value("document.querySelectorAll('#event-list tbody tr').length") == 2


def test_a_node_of_many_partitions_is_drawn(page, made_up):
    """63 partitions, and RDNA's pairs and arrays: a map has a cell for each CU, none upon another."""
    small = {"cus": 38, "row": 4, "xccs": 1, "compute_partition": "CPX"}
    rdna = {
        "cus": 96,
        "row": 24,
        "xccs": 1,
        "shader_engines": 6,
        "shader_arrays": 2,
        "device": "0000:03:00.0/0",
    }
    devices = [device(device=f"0000:05:00.0/{at}", **small) for at in range(63)] + [device(**rdna)]
    made_up.answers["/v1/devices"]["devices"] = devices
    made_up.answers["/v1/leases"]["leases"] = []
    made_up.open()
    places = (
        "[...document.querySelectorAll('svg.map')].map((map) => new Set([...map.querySelectorAll('rect')]"
        ".map((cell) => `${cell.getAttribute('x')} ${cell.getAttribute('y')}`)).size)"
    )
    assert page.value(places) == [38] * 63 + [96]
