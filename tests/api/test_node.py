"""Routes about the node: devices, events, health, the page, and what every answer has."""

from __future__ import annotations

import re

import pytest

from nodeagent.domain.errors import LedgerUnavailable
from nodeagent.domain.records import Event
from nodeagent.service.orders import ANONYMOUS

ROUTES = ["/v1/node", "/v1/devices", "/v1/leases", "/v1/events", "/healthz", "/readyz", "/metrics", "/"]


@pytest.mark.parametrize("path", [*ROUTES, "/openapi.json", "/nothing"])
def test_every_answer_forbids_framing_sniffing_and_keeping(user, path):
    """Security headers are on every answer, errors included."""
    headers = user.get(path).headers
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "UnknownThing"),
        ("GET", "/v1/leases/", 404, "UnknownThing"),
        ("GET", "//v1/leases", 404, "UnknownThing"),
        ("GET", "/v1/leases/1001", 404, "UnknownThing"),
        ("GET", "/v1/devices/0000:99:00.0/0", 404, "UnknownThing"),
        ("PUT", "/v1/leases", 405, "MethodNotAllowed"),
        ("OPTIONS", "/v1/leases", 405, "MethodNotAllowed"),
        ("TRACE", "/", 405, "MethodNotAllowed"),
        ("POST", "/v1/node", 405, "MethodNotAllowed"),
    ],
)
def test_flasks_own_errors_are_problems(user, method, path, status, code):
    """What never reached a route is a problem document too."""
    answer = user.open(path, method=method)
    assert (answer.status_code, answer.json["code"]) == (status, code)
    assert answer.content_type == "application/problem+json"
    assert ("Allow" in answer.headers) == (status == 405)


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        (None, "application/json"),
        ("", "application/json"),
        ("*/*", "application/json"),
        ("application/*", "application/json"),
        ("text/plain", "text/plain; charset=utf-8"),
        ("text/plain, application/json;q=0.1", "text/plain; charset=utf-8"),
        ("text/html", None),
        ("nonsense", None),
    ],
)
def test_the_media_type_is_the_callers_choice(user, agent, accept, media):
    """JSON unless text is preferred; neither is a 406 that has done nothing."""
    answer = user.post("/v1/leases", json={}, headers={} if accept is None else {"Accept": accept})
    assert answer.content_type == (media or "application/problem+json")
    assert answer.status_code == (201 if media else 406)
    assert ("NotAcceptable" in answer.text) is (media is None)
    assert len(agent.orders) == (1 if media else 0)


def test_devices_are_named_in_any_spelling(user):
    """The devices that a list of names means, each once; a name that is not clear is a 404."""
    keys = [one["device"] for one in user.get("/v1/devices?device=rocr:1,,renderD129").json["devices"]]
    assert keys == ["0000:c2:00.0/0"]
    assert len(user.get("/v1/devices?device=").json["devices"]) == 2
    refused = user.get("/v1/devices?device=1")
    assert (refused.status_code, refused.json["code"]) == (404, "UnknownThing")
    assert "rocr:1, hip:1 (0000:c2:00.0/0)" in refused.json["detail"]


def test_devices_show_what_is_free(user, agent):
    """A device's free CUs, bytes and queue slots are what no slice holds."""
    agent.add(1000)
    first, second = user.get("/v1/devices").json["devices"]
    assert first["free"] == {"cus": 240, "vram_bytes": 186 << 30, "queue_slots": 22, "shares": None}
    assert second["free"] == {"cus": 304, "vram_bytes": 190 << 30, "queue_slots": 24, "shares": None}
    assert (first["device"], first["cus"], first["row"], first["xccs"]) == ("0000:c1:00.0/0", 304, 32, 8)
    assert (first["unique_id"], first["hive"]) == ("0xabcdef0123456780", "0x0000000000001234")
    assert user.get("/v1/devices/0000:c1:00.0/0").json == first


@pytest.mark.parametrize("verb", ["drain", "undrain", "clear"])
def test_device_acts_are_for_administrators(user, root, verb):
    """Users may look at a device, not change what it grants."""
    path = f"/v1/devices/0000:c1:00.0/0/{verb}"
    assert user.post(path).status_code == 403
    assert root.post(path).json["device"] == "0000:c1:00.0/0"
    assert root.post("/v1/devices/0000:99:00.0/0/" + verb).status_code == 404


def test_drain_hands_on_reason_and_time(root, agent):
    """A drain's reason and end reach the agent; a reason that a terminal would act on does not."""
    path = "/v1/devices/0000:c1:00.0/0/drain"
    assert root.post(path, json={"reason": "fan (left)", "until_seconds": 7200}).status_code == 200
    assert agent.calls[-1] == ("drain", "0000:c1:00.0/0", "fan (left)", 7200)
    assert root.post(path, json={"reason": "a\nb"}).json["field"] == "reason"


def test_the_node_says_what_it_can_enforce(user):
    """Tiers, pools and skipped nodes are listed with their reasons."""
    node = user.get("/v1/node").json
    assert node["tiers"] == [{"name": "kernel", "present": False, "why": "no dmem controller"}]
    assert node["skipped"] == [{"kfd_node": 9, "reason": "EPERM"}]
    assert (node["ready"], node["machine"]) == (True, "this node")


def test_readiness_follows_the_node(user, agent):
    """Not ready is a 503 with the reason; health stays 200, as the agent answers."""
    assert user.get("/readyz").json == {"status": "ready", "reason": None}
    agent.ready = False
    answer = user.get("/readyz")
    assert (answer.status_code, answer.json["code"]) == (503, "NodeUnhealthy")
    assert answer.json["detail"] == "the ledger is full"
    assert answer.headers["Retry-After"] == "5"
    assert user.get("/healthz").status_code == 200


def test_a_sick_ledger_does_not_make_the_agent_dead(user, agent):
    """/healthz asks nothing of the ledger."""
    agent.fault = LedgerUnavailable("damaged")
    assert user.get("/healthz").status_code == 200
    assert user.get("/v1/leases").status_code == 503


def test_events_are_paged_and_masked(client_of, agent):
    """The cursor is the last id; what others did shows no uid, reason or data."""
    agent.records = [
        Event(5, "granted", 1_800_000_000.0, 1, "b", uid=1000, lease=1001, reason="why", data={"a": 1}),
        Event(6, "drained", 1_800_000_001.0, 2, "b", uid=0, device="0000:c1:00.0/0", reason="fan"),
    ]
    own = client_of(1000).get("/v1/events?limit=1").json
    assert (own["events"][0]["reason"], own["events"][0]["data"], own["next"]) == ("why", {"a": 1}, 5)
    others = client_of(1001).get("/v1/events").json["events"]
    assert [(e["uid"], e["reason"], e["data"]) for e in others] == [(None, None, None)] * 2
    assert client_of(0).get("/v1/events?after=6").json == {"events": [], "next": 6}


@pytest.mark.parametrize("wait", ["6", "-1", "1.5", "x", ""])
def test_waits_are_bounded(user, wait):
    """Nobody holds a thread over five seconds by asking for it."""
    answer = user.get(f"/v1/events?wait={wait}")
    assert (answer.status_code, answer.json["field"]) == (422, "wait")


def test_the_events_of_a_lease(client_of, agent):
    """Those of one lease alone, with how often each came and since when."""
    agent.records = [
        Event(5, "renewed", 1_800_000_060.0, 1, "b", 1000, 1001, count=7, first_at=1_800_000_000.0),
        Event(6, "granted", 1_800_000_001.0, 2, "b", uid=1000, lease=1002),
    ]
    (event,) = client_of(1000).get("/v1/events?lease=1001&newest=20").json["events"]
    assert (event["id"], event["count"]) == (5, 7)
    assert (event["first_at"], event["at"]) == ("2027-01-15T08:00:00.000Z", "2027-01-15T08:01:00.000Z")
    (once,) = client_of(1000).get("/v1/events?lease=1002").json["events"]
    assert (once["count"], once["first_at"]) == (1, once["at"])


def test_the_newest_events(client_of, agent):
    """The last of them, oldest first, and the cursor behind: what a page shows when it is opened."""
    agent.records = [Event(at, "granted", 1_800_000_000.0, 1, "b", uid=1000, lease=at) for at in range(1, 9)]
    answer = client_of(1000).get("/v1/events?newest=3").json
    assert ([event["id"] for event in answer["events"]], answer["next"]) == ([6, 7, 8], 8)


@pytest.mark.parametrize(
    ("uid", "shown", "administrator"), [(0, 0, True), (1000, 1000, False), (ANONYMOUS, None, False)]
)
def test_who_the_caller_is_taken_for(client_of, uid, shown, administrator):
    """As the kernel says, whatever the page would like; who comes by TCP has no uid."""
    assert client_of(uid).get("/v1/caller").json == {"uid": shown, "administrator": administrator}


@pytest.mark.parametrize(
    ("path", "media"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/dashboard.css", "text/css; charset=utf-8"),
        ("/dashboard.js", "text/javascript; charset=utf-8"),
    ],
)
def test_the_page_is_inert(user, path, media):
    """It loads its own two files, has no code or style in its markup, and no way from text to markup."""
    answer = user.get(path)
    assert answer.content_type == media
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["form-action"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert (policy["require-trusted-types-for"], policy["trusted-types"]) == ("'script'", "'none'")
    if path == "/":
        assert not re.search(r"<style|<script(?![^>]* src=)|\son\w+=|\sstyle=|javascript:", answer.text, re.I)
    assert not re.search(r"(?:src|href)=[\"']?(?:https?:)?//|url\(|@import", answer.text, re.I)


def test_the_script_makes_no_markup_of_text(user):
    """None of the ways from a string to markup or code is in it."""
    ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|setHTML|eval\(|Function\("
    assert not re.search(ways, user.get("/dashboard.js").text)
