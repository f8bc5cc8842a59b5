"""The page of a real agent, through a forwarded socket: what happens on the node shows, and acts count."""

from __future__ import annotations

import json

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.root]

GRANT = {"slices": [{"cu_percent": 25, "vram_bytes": 8 << 30}], "ttl_seconds": 600}
OTHER = 65534


def test_a_grant_and_a_release_show_while_they_happen(page, node, forwarded):
    """Nobody reloads: the lease is in the map, the bar and the list, and then it is not."""
    page.open(forwarded(), "document.querySelectorAll('article').length")
    assert page.value("document.getElementById('lease-list').textContent") == "Nobody holds a lease."
    lease = node.http("POST", "/v1/leases", GRANT).body
    number, slice_ = lease["id"], lease["slices"][0]
    page.until(f"document.getElementById('lease-{number}')")
    card = f"document.getElementById('device-{slice_['device']}').closest('article')"
    assert page.value(f"{card}.querySelectorAll('svg.map rect.k0').length") == slice_["cu_count"]
    assert page.value(f"{card}.querySelectorAll('svg:not(.map) rect.k0').length") == 1
    assert f"lease {number}" in page.value(f"{card}.querySelector('.legend').textContent")
    node.http("DELETE", f"/v1/leases/{number}?wait=5")
    page.until(f"!document.getElementById('lease-{number}')")
    assert page.value(f"{card}.querySelectorAll('rect.k0').length") == 0
    page.until("document.getElementById('event-list').textContent.includes('released')")


@pytest.mark.slow
def test_an_administrator_drains_by_keyboard(page, node, forwarded):
    """The browser's own headers pass, and the device grants nothing until it is undrained."""
    page.open(forwarded(), "document.querySelector('button[id^=drain-]')")
    key = node.http("GET", "/v1/devices").body["devices"][0]["device"]
    page.value(f"document.getElementById('drain-{key}').focus()")
    page.press("Enter")
    page.until("document.getElementById('ask').open")
    page.value("document.getElementById('reason').focus()")
    page.type("fan (left)")
    page.press("Enter")
    page.until(f"document.getElementById('undrain-{key}')")
    shown = node.http("GET", f"/v1/devices/{key}").body
    assert (shown["state"], shown["reason"]) == ("draining", "fan (left)")
    page.value(f"document.getElementById('undrain-{key}').focus()")
    page.press("Enter")
    page.until("document.getElementById('ask').open")
    page.value("document.getElementById('ask-yes').focus()")
    page.press("Enter")
    page.until(f"document.getElementById('drain-{key}')")
    assert node.http("GET", f"/v1/devices/{key}").body["state"] == "healthy"


@pytest.mark.slow
def test_a_user_sees_no_acts_and_is_refused_them(page, node, forwarded):
    """Without the buttons, and without the right: the page decides nothing."""
    lease = node.http("POST", "/v1/leases", GRANT).body
    page.open(forwarded(OTHER), f"document.getElementById('lease-{lease['id']}')")
    assert page.value("document.querySelectorAll('article button, td button').length") == 0
    assert "not shown" in page.value(f"document.getElementById('lease-{lease['id']}').textContent")
    act = f"fetch('/v1/leases/{lease['id']}', {{method: 'DELETE'}}).then((answer) => answer.status)"
    assert page.value(act) == 403
    node.http("DELETE", f"/v1/leases/{lease['id']}?wait=5")


@pytest.mark.slow
def test_a_page_of_another_port_can_do_nothing(page, node, forwarded):
    """The same machine, another origin: its requests are refused, and it reads none of the answers."""
    agent, evil = forwarded(), forwarded()
    key = node.http("GET", "/v1/devices").body["devices"][0]["device"]
    page.open(evil, "document.querySelector('article')")
    page.call("Page.setBypassCSP", enabled=True)  # a hostile page has no policy of ours
    page.open(f"{evil}healthz", "true")
    for method, path in (
        ("POST", f"v1/devices/{key}/drain"),
        ("DELETE", "v1/leases/1"),
        ("GET", "v1/leases"),
    ):
        for mode in ("cors", "no-cors"):
            options = json.dumps({"method": method, "mode": mode})
            act = f"fetch('{agent}{path}', {options}).then((one) => one.type, (fault) => 'failed')"
            assert page.value(act) in ("failed", "opaque")
    page.call("Page.setBypassCSP", enabled=False)
    assert node.http("GET", f"/v1/devices/{key}").body["state"] == "healthy"
    page.complaints.clear()


@pytest.mark.slow
def test_the_tcp_port_shows_the_node_to_who_has_the_token(page, node, web):
    """Read-only: no acts and no events, leases masked; the token is typed, and a wrong one shows nothing."""
    lease = node.http("POST", "/v1/leases", GRANT).body
    page.open(web.address, "!document.getElementById('login').hidden")
    assert page.value("document.querySelectorAll('article').length") == 0
    page.value("document.getElementById('token').focus()")
    page.type(web.token_file.read_text())
    page.press("Enter")
    page.until(f"document.getElementById('lease-{lease['id']}')")
    assert "not shown" in page.value(f"document.getElementById('lease-{lease['id']}').textContent")
    assert page.value("document.querySelectorAll('main section button').length") == 0
    assert page.value("document.getElementById('event-list').textContent") == "No event is shown to you."
    assert "nobody in particular" in page.value("document.getElementById('caller').textContent")
    bearer = "{headers: {Authorization: `Bearer ${sessionStorage.getItem('token')}`}, method: 'DELETE'}"
    act = f"fetch('/v1/leases/{lease['id']}', {bearer}).then((answer) => answer.status)"
    assert page.value(act) == 405
    node.http("DELETE", f"/v1/leases/{lease['id']}?wait=5")
