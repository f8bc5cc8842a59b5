"""A real gunicorn that listens on TCP too."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from nodeagent import config, wiring
from nodeagent.api.admission import Admission, Lane, Limits
from nodeagent.domain.endpoint import Endpoint
from nodeagent.service.orders import ANONYMOUS


@pytest.fixture
def endpoint() -> Endpoint:
    """A free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return Endpoint.parse(f"127.0.0.1:{probe.getsockname()[1]}")


def connected(endpoint: Endpoint) -> socket.socket:
    return socket.create_connection((str(endpoint.address), endpoint.port), timeout=20)


def status_by_tcp(endpoint: Endpoint, host: str | None = None) -> int:
    with connected(endpoint) as connection:
        name = host or f"127.0.0.1:{endpoint.port}"
        connection.sendall(f"GET /healthz HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())
        return int(connection.recv(65536).split()[1])


@pytest.fixture
def pair() -> Iterator[socket.socket]:
    """The accepted end of a TCP connection."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        yield accepted


def test_who_comes_by_tcp_is_nobody(pair):
    """The kernel names no peer there: the caller is a uid that nobody has, and never an administrator."""
    caller = wiring.identifier(0)({"gunicorn.socket": pair})
    assert (caller.uid, caller.administrator, caller.anonymous) == (ANONYMOUS, False, True)
    assert wiring.classifier(config.Config())(pair) == Lane(ANONYMOUS, reserved=False)


def test_both_are_served(serve, endpoint):
    """One agent answers on its socket and by TCP; by TCP by its own name only."""
    server = serve(web=endpoint)
    assert server.get("/healthz")[0] == 200
    assert status_by_tcp(endpoint) == 200
    assert status_by_tcp(endpoint, "evil.example") == 421


def test_a_port_that_is_taken_stops_no_lease(serve, endpoint):
    """The agent serves its socket, whoever has the port."""
    with socket.create_server((str(endpoint.address), endpoint.port)):
        assert serve(web=endpoint).get("/healthz")[0] == 200


@pytest.mark.root
def test_slow_callers_by_tcp_hold_no_users_threads(serve, agent, endpoint):
    """More requests by TCP than the agent has threads, none of which ends, leave a user served."""
    agent.node = lambda: time.sleep(60)
    server = serve(web=endpoint, threads=4)
    asked = f"GET /v1/node HTTP/1.1\r\nHost: 127.0.0.1:{endpoint.port}\r\n\r\n".encode()
    with contextlib.ExitStack() as kept:
        for _ in range(12):
            kept.enter_context(connected(endpoint)).sendall(asked)
        for _ in range(5):  # the first may come before the others have their threads
            assert server.get_as(4243, "/healthz")[0] == 200


def test_callers_by_tcp_are_bounded_apart():
    """They have places of their own number, and not a user's four."""
    admission = Admission(Limits(web=6, users=50))
    assert [admission.enter(Lane(ANONYMOUS, False)) for _ in range(7)] == [True] * 6 + [False]
