"""What the page must never do: run what others wrote, show acts to all, tell its token, take a seat."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.made_up import ORIGIN, a_busy_node

pytestmark = pytest.mark.browser

_MARKUP = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
_MORE = "'\"`--></style><svg onload=alert(1)>{{7*7}}"
HOSTILE = f"\x1b[2J\x1b]0;owned\x07{_MARKUP}\u202egnp.exe\u2066\u200b\x9b31m\n{_MORE}\U000e0041"
SHOWN = f"\\x1b[2J\\x1b]0;owned\\x07{_MARKUP}\\u202egnp.exe\\u2066\\u200b\\x9b31m\\x0a{_MORE}\\U000e0041"


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
    made_up.until_asked("/v1/events?after=2")
    assert not [path for _, path, _, _ in made_up.asked if "wait=" in path]
