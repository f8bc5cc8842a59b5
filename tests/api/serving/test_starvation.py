"""Users who try to hold the agent's threads, shown with real second users against a real server."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import struct
import time

import pytest

from nodeagent.api.admission import Limits

ATTACKER, OTHER = 4242, 4243
HEAD = b"Host: localhost\r\n\r\n"
ATTACKS = {
    "nothing": b"",
    "one byte": b"G",
    "half a head": b"GET /v1/leases HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
    "half a body": b"POST /v1/leases HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 100\r\n\r\n{",
    "expected body": b"POST /v1/leases HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Expect: 100-continue\r\nContent-Length: 60000\r\n\r\n",
    "chunks": b"POST /v1/leases HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
    "long waits": b"GET /v1/events?after=9&wait=5 HTTP/1.1\r\n" + HEAD,
    "answers unread": b"GET /v1/leases?limit=500 HTTP/1.1\r\n" + HEAD,
    "answered and not closed": b"GET /healthz HTTP/1.1\r\n" + HEAD,
}


@contextlib.contextmanager
def attack(path, uids, sent, connections):
    """A process that opens *connections* as each of *uids*, sends *sent* on each, and keeps them open."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
            kept = []
            for uid in uids:
                os.setresuid(uid, uid, 0)
                for _ in range(connections):
                    with contextlib.suppress(OSError):
                        one = socket.socket(socket.AF_UNIX)
                        one.settimeout(5)
                        one.connect(str(path))
                        one.send(sent)
                        kept.append(one)
                os.setresuid(0, 0, 0)
            os.write(writer, b"x")
            signal.pause()
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        assert stream.read(1) == b"x", "the attack did not come up"
        try:
            yield
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


@pytest.mark.root
@pytest.mark.parametrize("sent", ATTACKS.values(), ids=ATTACKS)
def test_root_and_others_are_answered_while_a_user_attacks(serve, agent, sent):
    """Forty connections of one uid, in every way to be slow, leave root and another user served."""
    for _ in range(500):
        agent.add(ATTACKER)
    agent.on_wait = _sleep
    server = serve(limits=Limits(life=600))
    with attack(server.path, [ATTACKER], sent, 40):
        assert server.get("/readyz")[0] == 200
        assert server.get_as(OTHER, "/v1/node")[0] == 200
        assert server.get("/v1/leases?limit=5")[0] == 200


@pytest.mark.root
@pytest.mark.parametrize("name", ["one byte", "half a body", "long waits", "answers unread"])
def test_root_and_others_are_answered_while_many_uids_attack(serve, agent, name):
    """Twelve subordinate uids have twelve users' connections, and still hold no thread by being slow."""
    for _ in range(500):
        agent.add(ATTACKER)
    agent.on_wait = _sleep
    server = serve(limits=Limits(life=600))
    with attack(server.path, range(5000, 5012), ATTACKS[name], 4):
        assert server.get("/readyz")[0] == 200
        assert server.get_as(OTHER, "/v1/node")[0] == 200


@pytest.mark.root
def test_root_is_answered_among_two_thousand_connections(serve):
    """A flood fills the users' share and the backlog, not root's lane."""
    server = serve(limits=Limits(life=600))
    with attack(server.path, range(5000, 5200), b"G", 10):
        assert server.get("/readyz")[0] == 200


@pytest.mark.root
def test_a_users_fifth_connection_is_told_why(serve):
    """Over its share a uid gets a 429 that it can act on."""
    server = serve(limits=Limits(life=600))
    with attack(server.path, [ATTACKER], b"G", 4):
        status, problem = server.get_as(ATTACKER, "/healthz")
        assert (status, problem["code"]) == (429, "TooMany")


@pytest.mark.root
def test_a_connection_ends_at_its_time(serve):
    """A user's connection is closed by the server whatever trickles in, so its share comes back."""
    server = serve(limits=Limits(per_uid=1, life=0.5))
    with attack(server.path, [ATTACKER], b"G", 1):
        statuses = []
        while 200 not in statuses and len(statuses) < 2000:
            statuses.append(server.get_as(ATTACKER, "/healthz")[0])
        assert statuses[-1] == 200


def test_a_peer_that_vanishes_costs_nothing(serve):
    """Clients that reset in the middle of a request or an answer leave the server as it was."""
    server = serve(limits=Limits(per_uid=100))  # where the tests do not run as root
    for sent in ATTACKS.values():
        for _ in range(5):
            with server.connect() as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.sendall(sent)
    assert server.get("/readyz")[0] == 200


def _sleep(seconds):
    """A wait that lasts longer than the test: what it holds, it holds."""
    time.sleep(60)
