"""The page for everybody: by keyboard, on a phone, in the dark, read aloud; and whatever text it gets."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.made_up import ORIGIN, a_busy_node, device, lease
from tests.browser.measures import contrasts, nameless, reachable, way_of_the_focus

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PHONE = 360
_MARKUP = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
_MORE = "'\"`--></style><svg onload=alert(1)>{{7*7}}"
HOSTILE = f"\x1b[2J\x1b]0;owned\x07{_MARKUP}\u202egnp.exe\u2066\u200b\x9b31m\n{_MORE}\U000e0041"
SHOWN = f"\\x1b[2J\\x1b]0;owned\\x07{_MARKUP}\\u202egnp.exe\\u2066\\u200b\\x9b31m\\x0a{_MORE}\\U000e0041"


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


def hostile(value: Any) -> Any:
    """The same answer with the hostile text wherever there is a text that is no time, state or address."""
    kept = {"at", "cus", "created_at", "expires_at", "state", "memory", "priority"}
    if isinstance(value, dict):
        return {key: item if key in kept else hostile(item) for key, item in value.items()}
    if isinstance(value, list):
        return [hostile(item) for item in value]
    return HOSTILE if isinstance(value, str) else value


def test_a_hostile_text_stays_text(page, made_up):
    """Markup, escape sequences, turned and invisible text are written out, and run nothing."""
    made_up.answers = hostile(a_busy_node())
    made_up.answers["/v1/leases"]["leases"][0]["state"] = HOSTILE
    made_up.answers["/v1/leases"]["leases"][0]["expires_at"] = HOSTILE
    made_up.open()
    shown = page.value("document.body.textContent")
    assert shown.count(SHOWN) > 20
    assert not set(HOSTILE) & set(shown) - set(SHOWN) - {"\n"}
    assert page.value("document.title") == "nodeagent"
    assert page.value("document.querySelectorAll('img, script, style, iframe').length") == 1  # its own
    apart = "(one) => getComputedStyle(one).unicodeBidi === 'isolate'"
    assert page.value(f"[...document.querySelectorAll('bdi')].every({apart})")
    page.value("document.querySelector('button[id^=drain]').click()")
    assert SHOWN in page.value("document.getElementById('ask-title').textContent")


def test_markup_from_text_is_refused_by_the_browser(page, made_up):
    """Were the script wrong one day, the page's policy still stands in between."""
    made_up.open()
    foreign = "Object.assign(document.createElement('script'), {src: 'http://x.example/'})"
    for act in ("document.body.innerHTML = '<p>'", f"document.body.append({foreign})"):
        attempt = f"(() => {{ try {{ {act}; return 'done'; }} catch (fault) {{ return fault.name; }} }})()"
        assert page.value(attempt) == "TypeError"
    assert page.complaints
    page.complaints.clear()


def test_a_token_is_asked_for_and_goes_into_the_header_only(page, made_up):
    """Typed once for the tab; in no address, and not among what other ports get."""
    made_up.token = "s" * 43
    made_up.open(ready="!document.getElementById('login').hidden")
    page.value("document.getElementById('token').focus()")
    page.type("wrong")
    page.press("Enter")
    page.until("document.getElementById('fault').textContent === 'That is not the token.'")
    page.type(made_up.token)
    page.press("Enter")
    page.until("document.querySelector('article')")
    assert page.value("document.getElementById('login').hidden")
    for _, path, headers, _ in made_up.asked:
        where = {name for name, value in headers.items() if made_up.token in value}
        assert made_up.token not in path and where <= {"authorization"} and "cookie" not in headers
    page.value("document.getElementById('forget').click()")
    page.until("!document.getElementById('login').hidden")


def test_a_token_behind_the_hash_leaves_the_address(page, made_up):
    """A link may carry it: the browser sends no fragment, and the page takes it out of the history."""
    made_up.token = "t" * 43
    made_up.open(fragment=f"#token={made_up.token}")
    assert page.value("location.href") == ORIGIN
    page.value("sessionStorage.clear()")


def test_who_is_no_administrator_sees_no_acts(page, made_up):
    """Not one button."""
    made_up.answers["/v1/caller"] = {"uid": 1000, "administrator": False}
    made_up.open()
    assert page.value("document.querySelectorAll('main section button').length") == 0


def test_it_never_waits_in_a_users_seat(page, made_up):
    """No request of the page's asks the agent to wait."""
    made_up.open()
    page.until("document.querySelectorAll('#event-list tr').length > 1")
    assert not [path for _, path, _, _ in made_up.asked if "wait=" in path]


def test_an_agent_that_is_away_is_said_and_comes_back(page, made_up):
    """What is shown stays, is called old, and is new again by itself."""
    made_up.open()
    made_up.statuses = dict.fromkeys(made_up.answers, 503)
    page.until("document.getElementById('fault').textContent.startsWith('What is shown may be old')")
    made_up.statuses = {}
    page.until("document.getElementById('fault').textContent === ''")
