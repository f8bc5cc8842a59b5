"""The read-only TCP listener: what it serves, by which name, and to whom."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from nodeagent.api.app import ApiSettings, api_routes, create_app
from nodeagent.api.browsers import LOOPBACK, BrowserCheck
from nodeagent.api.web import WebSettings
from nodeagent.domain.endpoint import Endpoint
from nodeagent.domain.errors import OutsideFault
from nodeagent.service.orders import ANONYMOUS

from .conftest import identify

TOKEN = "0123456789abcdef" * 2
HERE = {"Host": "127.0.0.1:9440"}
SHOWN = {**HERE, "Authorization": f"Bearer {TOKEN}"}


def settings(token=lambda: TOKEN.encode()):
    endpoint = Endpoint.parse("127.0.0.1:9440")
    return WebSettings(endpoint, endpoint.hosts(["gpu01"]), token)


@pytest.fixture
def web(agent, clock, client_of):
    """Make a client that comes by TCP to an application with these settings."""
    connection = socket.socket(socket.AF_INET)

    def make(web_settings, **more):
        names = web_settings.names if web_settings else frozenset()
        browsers = BrowserCheck(LOOPBACK | names)
        api = ApiSettings(clock=clock, version="0.1.0", web=web_settings, browsers=browsers, **more)
        client = client_of(ANONYMOUS, application=create_app(agent, identify, api), administrator=False)
        client.environ_base["gunicorn.socket"] = connection
        return client

    yield make
    connection.close()


def test_reads_are_served(web):
    """Metrics, health, the node, devices and leases are there with the token."""
    client = web(settings())
    for path in ("/metrics", "/healthz", "/readyz", "/v1/node", "/v1/devices", "/v1/leases", "/v1/events"):
        assert client.get(path, headers=SHOWN).status_code == 200, path
    assert client.get("/v1/node", headers={**SHOWN, "Host": "GPU01:9440"}).status_code == 200


def test_nothing_is_changed_by_tcp(web, agent):
    """Of all routes none is there that is not marked for it, and no method but those that read."""
    agent.add(1000)
    client = web(settings())
    for route in api_routes(agent, ApiSettings(clock=agent.clock, version="0")):
        path = route.path.replace("{id}", "1001").replace("{pci}/{partition}", "0000:c1:00.0/0")
        if route.method != "GET":
            assert client.open(path, method=route.method, json={}, headers=SHOWN).status_code == 405, path
        elif not (route.web or route.public):
            assert client.get(path, headers=SHOWN).status_code == 404, path
    assert agent.orders == [] and not [
        call for call in agent.calls if call[0] in {"release", "drain", "renew"}
    ]


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:9440", "127.0.0.1", "127.0.0.1:80", "127.0.0.1:9440.evil.example", ""],
)
def test_another_name_is_not_served(web, host):
    """A name that was made to point here gets nothing, token or not, and whatever it asks for."""
    client = web(settings())
    for path in ("/metrics", "/v1/leases", "/nothing"):
        answer = client.get(path, headers={**SHOWN, "Host": host})
        assert (answer.status_code, answer.json["code"]) == (421, "WrongHost")


@pytest.mark.parametrize(
    "shown",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN}x",
        f"Basic {TOKEN}",
        TOKEN,
        "Bearer ä",
    ],
)
def test_the_token_is_asked_for(web, shown):
    """Without exactly the token there is a 401, whether the path exists or not; no parameter stands in."""
    client = web(settings())
    headers = HERE if shown is None else {**HERE, "Authorization": shown}
    for path in ("/metrics", f"/v1/node?token={TOKEN}", "/nothing", "/openapi.json"):
        answer = client.get(path, headers=headers)
        assert (answer.status_code, answer.json["code"]) == (401, "Unauthenticated")
        assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_a_loopback_listener_may_ask_for_none(web):
    """Where the site names no token, what anybody may see is shown without."""
    assert web(settings(token=None)).get("/metrics", headers=HERE).status_code == 200


def test_a_token_that_cannot_be_read_lets_nobody_in(web):
    """A token file that went, or was opened to others, is a 503 that does not name it."""

    def gone():
        raise OutsideFault(Path("/etc/nodeagent/web.token"), "no such file")

    answer = web(settings(token=gone)).get("/metrics", headers=SHOWN)
    assert (answer.status_code, answer.json["code"]) == (503, "NodeUnhealthy")
    assert "web.token" not in answer.text


def test_a_token_that_cannot_be_read_is_logged_once(web):
    """However often somebody asks, the log has each trouble once, and its end."""
    told: list[OutsideFault | None] = []

    def token():
        if told[0] is not None:
            raise told[0]
        return TOKEN.encode()

    client = web(settings(token=token))
    with capture_logs() as logs:
        for fault in (OutsideFault("/t", "is gone"), OutsideFault("/t", "is empty"), None):
            told[:] = [fault]
            for _ in range(3):
                client.get("/metrics", headers=SHOWN)
    assert [(one["log_level"], one.get("why")) for one in logs] == [
        ("error", "/t: is gone"),
        ("error", "/t: is empty"),
        ("info", None),
    ]


def test_leases_are_masked_even_where_they_are_open(web, agent):
    """Who comes by TCP sees sizes only, also where every user of the node sees holders; nor can it filter."""
    agent.add(1000)
    client = web(settings(), leases_open=True)
    lease = client.get("/v1/leases/1001", headers=SHOWN).json
    assert lease["masked"] and lease["holder"] == {"kind": "client", "id": None, "uid": None}
    assert client.get("/v1/leases?user=1000", headers=SHOWN).status_code == 403
    assert client.get("/v1/leases?holder=client:trainer", headers=SHOWN).json["leases"] == []


def test_without_settings_nothing_is_served(web):
    """A connection by TCP to an agent that has no listener gets nothing."""
    assert web(None).get("/metrics", headers=SHOWN).status_code == 421


def test_the_socket_is_as_it_was(user):
    """The unix socket asks for no port in the Host, and for no token."""
    assert user.get("/metrics", headers={"Host": "localhost"}).status_code == 200
