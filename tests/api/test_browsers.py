"""What a browser sends on behalf of a page of somebody else's has no effect, and learns nothing."""

from __future__ import annotations

import pytest

DRAIN = "/v1/devices/0000:c1:00.0/0/drain"
OWN = "http://localhost:8080"


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8080", "LOCALHOST:8080", "127.0.0.1:8080", "[::1]", "[::1]:8080", "localhost:"],
)
def test_the_agent_answers_to_the_names_of_a_forwarded_port(user, host):
    """However the loopback interface is spelled, and whatever the port."""
    assert user.get("/v1/devices", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8080", "localhost.evil.example", "x", "127.0.0.2", "[::2]:80", "::1"),
        *("localhost:8080:8080", "localhost:80a", "127.0.0.1.", "localhost, evil.example"),
    ],
)
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/leases"), ("GET", "/"), ("GET", "/v1/node"), ("POST", DRAIN)]
)
def test_a_name_that_was_bound_to_the_loopback_address_later_gets_nothing(root, agent, method, path, host):
    """After DNS rebinding the page's origin is its own: the name alone gives it away, for reading too."""
    answer = root.open(path, method=method, headers={"Host": host, "Origin": f"http://{host}"})
    assert (answer.status_code, answer.json["code"]) == (403, "NotAllowed")
    assert answer.json["detail"].startswith("Host")
    assert agent.calls == []


@pytest.mark.parametrize("site", ["cross-site", "same-site", "anything"])
@pytest.mark.parametrize(
    ("method", "path"), [("POST", DRAIN), ("DELETE", "/v1/leases/1001"), ("GET", "/v1/node")]
)
def test_a_page_of_another_site_or_port_is_refused(root, agent, method, path, site):
    """By Sec-Fetch-Site: also another port of this machine, which is the same site."""
    agent.add(1000)
    answer = root.open(path, method=method, headers={"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"})
    assert answer.status_code == 403
    assert agent.calls == []


@pytest.mark.parametrize(
    "origin", ["null", "http://evil.example", "http://localhost:8081", "http://127.0.0.1:8080", ""]
)
def test_a_foreign_origin_is_refused(root, agent, origin):
    """Browsers that send no Sec-Fetch-Site still say where a POST comes from."""
    headers = {"Host": "localhost:8080", "Origin": origin}
    assert root.post(DRAIN, headers=headers).status_code == 403
    assert agent.calls == []


def test_the_agents_own_page_may_act(root, agent):
    """Same origin, by both headers."""
    headers = {"Host": "localhost:8080", "Origin": OWN, "Sec-Fetch-Site": "same-origin"}
    assert root.post(DRAIN, json={"reason": "fan"}, headers=headers).status_code == 200
    assert agent.calls[-1][0] == "drain"


@pytest.mark.parametrize(
    ("path", "mode", "dest", "status"),
    [
        ("/", "navigate", "document", 200),
        ("/", "navigate", "iframe", 403),
        ("/", "no-cors", "script", 403),
        ("/v1/leases", "navigate", "document", 403),
    ],
)
def test_a_link_may_lead_to_the_page_only(root, path, mode, dest, status):
    """A person who follows a link sees the dashboard; nothing is embedded or read elsewhere."""
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": dest}
    assert root.get(path, headers=headers).status_code == status


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "multipart/form-data", "text/plain"])
def test_a_form_is_no_call(root, agent, kind):
    """What an HTML form can send is refused for its type, were it sent by a browser that names no origin."""
    answer = root.post(DRAIN, data=b"reason=x", content_type=kind)
    assert (answer.status_code, agent.calls) == (415, [])
    answer = root.post(DRAIN, data=b"", content_type=kind)
    assert (answer.status_code, agent.calls) == (415, [])


def test_programs_send_none_of_it(root, agent):
    """No Origin, no Sec-Fetch-Site, no body, no type: curl and the client go on as before."""
    assert root.post(DRAIN).status_code == 200
    assert root.get("/v1/node", headers={"Host": ""}).status_code == 200


def test_nobody_embeds_an_answer(user):
    """Other origins get neither the bytes nor a window's handle."""
    headers = user.get("/v1/leases").headers
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert not [name for name in headers if name[0].startswith("Access-Control-")]
