"""A real gunicorn whose one worker is replaced: what was under way, what waits, and what cannot be had."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from nodeagent.api.admission import Lane
from nodeagent.api.app import ApiSettings, create_app
from nodeagent.api.server import Hooks, ServerSettings, Serving
from nodeagent.api.web import WebSettings
from nodeagent.domain.endpoint import Endpoint
from nodeagent.domain.errors import InvalidField

SECONDS = 20
LEASE = b"GET /v1/leases/1001?wait=5 HTTP/1.1\r\nHost: localhost\r\n\r\n"


@dataclass
class Told:
    """Lines that all processes of a server write, and a test reads."""

    path: Path

    def __call__(self, line: str) -> None:
        with self.path.open("a") as file:
            file.write(f"{line}\n")

    @property
    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []

    def wait_for(self, line: str, count: int = 1) -> None:
        deadline = time.monotonic() + SECONDS
        while self.lines.count(line) < count:
            assert time.monotonic() < deadline, self.lines
            time.sleep(0.02)


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(tmp_path / "told")


@dataclass
class Next:
    """A reload that serves *serving*, or fails with *fault*."""

    told: Told
    serving: Serving
    fault: Exception | None = None
    during: Callable[[], None] = field(default=lambda: None)

    def begin(self) -> None:
        self.told("begin")

    def make(self) -> Serving:
        self.during()
        if self.fault is not None:
            raise self.fault
        return self.serving

    def done(self) -> None:
        self.told("done")

    def failed(self, why: str) -> None:
        self.told(f"failed: {why}")


def noting(told: Told, name: str, *, start: Callable[[], None] = lambda: None) -> Hooks:
    """Hooks that tell the start and the stop of what is called *name*."""

    def begin() -> None:
        start()
        told(f"start {name}")

    return Hooks(start=begin, stop=lambda: told(f"stop {name}"))


@pytest.fixture
def following(agent: Any, clock: Any, identify_peer: Any, public_directory: Path) -> Callable[..., Serving]:
    """What is served after a reload."""

    def make(hooks: Hooks, web: Endpoint | None = None) -> Serving:
        api = ApiSettings(clock=clock, version="0.1.0", web=web and WebSettings(web, web.hosts()))
        settings = ServerSettings(
            public_directory / "api.sock", lambda _: Lane(0, True), web=web, graceful_seconds=1
        )
        return Serving(lambda: create_app(agent, identify_peer, api), settings, hooks)

    return make


def test_the_new_worker_starts_when_the_old_one_has_ended(serve, following, told):
    """Two reconcilers, or two writers of one ledger, are never there at a time."""
    old = replace(noting(told, "old"), stop=lambda: (time.sleep(0.5), told("stop old")))
    server = serve(old, reload=Next(told, following(noting(told, "new"))))
    before = server.workers()
    os.kill(server.pid, signal.SIGHUP)
    told.wait_for("done")
    assert told.lines == ["start old", "begin", "stop old", "start new", "done"]
    assert len(server.workers()) == 1
    assert server.workers() != before


def test_who_connects_meanwhile_waits_and_is_answered(serve, following, told):
    """No connection is refused, and none breaks off, while there is no worker."""
    new = noting(told, "new", start=lambda: (told("starting"), time.sleep(0.5)))
    server = serve(noting(told, "old"), reload=Next(told, following(new)))
    os.kill(server.pid, signal.SIGHUP)
    told.wait_for("starting")
    assert [server.get("/healthz")[0] for _ in range(3)] == [200, 200, 200]


def test_who_follows_a_lease_is_answered_early(serve, following, told, agent):
    """A request that waits ends its wait for the new worker, and is answered by the old one."""
    agent.add(0)
    leaving = threading.Event()
    agent.wait_lease = lambda caller, lease_id, seconds: (
        told("waiting"),
        leaving.wait(60),
        agent.lease(caller, lease_id),
    )[2]
    old = Hooks(leave=leaving.set)
    server = serve(old, reload=Next(told, following(Hooks())))
    with server.connect() as connection:
        connection.sendall(LEASE)
        told.wait_for("waiting")
        os.kill(server.pid, signal.SIGHUP)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
    told.wait_for("done")


def test_who_has_not_asked_yet_is_heard(serve, following, told):
    """A request whose second half comes while its worker is to end is answered."""
    server = serve(reload=Next(told, following(Hooks())), hooks=Hooks(leave=lambda: told("leaving")))
    with server.connect() as connection:
        connection.sendall(LEASE[:20])
        os.kill(server.pid, signal.SIGHUP)
        told.wait_for("leaving")
        connection.sendall(LEASE[20:])
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 404")


def test_who_never_asks_keeps_nobody_waiting(serve, following, told):
    """A connection that sends nothing does not hold the old worker until it is killed."""
    server = serve(noting(told, "old"), reload=Next(told, following(noting(told, "new"))))
    with server.connect():
        os.kill(server.pid, signal.SIGHUP)
        told.wait_for("done")
    assert "stop old" in told.lines


def test_settings_that_cannot_be_had_change_nothing(serve, following, told):
    """The worker that serves goes on, and knows of nothing."""
    fault = InvalidField("limits.live_leass", "unknown\nkey")
    server = serve(noting(told, "old"), reload=Next(told, following(Hooks()), fault))
    before = server.workers()
    os.kill(server.pid, signal.SIGHUP)
    told.wait_for("failed: limits.live_leass: unknown key")
    assert server.workers() == before
    assert server.get("/healthz")[0] == 200


def _fails() -> None:
    raise OSError("no start")


def test_a_worker_that_does_not_start_brings_the_old_settings_back(serve, following, told):
    """What was served before is served again, by another worker."""
    server = serve(noting(told, "old"), reload=Next(told, following(noting(told, "new", start=_fails))))
    os.kill(server.pid, signal.SIGHUP)
    told.wait_for("failed: the new worker ended: the agent's log has more")
    assert [line for line in told.lines if line.startswith("start")] == ["start old", "start old"]
    assert server.get("/healthz")[0] == 200


def test_reloads_that_are_asked_for_meanwhile_are_one(serve, following, told):
    """Settings that were written during a reload are read, once."""
    new = noting(told, "new", start=lambda: (told("starting"), time.sleep(0.3)))
    server = serve(reload=Next(told, following(new)))
    os.kill(server.pid, signal.SIGHUP)
    told.wait_for("starting")
    for _ in range(5):
        os.kill(server.pid, signal.SIGHUP)
        time.sleep(0.01)
    told.wait_for("done", 2)
    assert server.get("/healthz")[0] == 200
    assert told.lines.count("begin") == 2


def test_a_stop_that_is_asked_for_meanwhile_is_obeyed(serve, following, told):
    """A service manager that stops the agent waits for no reload."""
    new = noting(told, "new", start=lambda: (told("starting"), time.sleep(60)))
    server = serve(reload=Next(told, following(new)))
    os.kill(server.pid, signal.SIGHUP)
    told.wait_for("starting")
    workers = server.workers()
    os.kill(server.pid, signal.SIGTERM)
    deadline = time.monotonic() + SECONDS
    try:
        while Path(f"/proc/{server.pid}/stat").read_text().split()[2] != "Z":
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        for pid in (server.pid, *workers):  # one that did not obey would be waited for
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert "done" not in told.lines


def test_a_hang_up_is_for_the_arbiter(serve, told):
    """A worker that gets one, as `systemctl kill` sends to all, works on."""
    server = serve(noting(told, "old"))
    before = server.workers()
    os.kill(before[0], signal.SIGHUP)
    os.kill(server.pid, signal.SIGHUP)  # nothing is to be read anew here
    assert server.get("/healthz")[0] == 200
    assert (server.workers(), told.lines) == (before, ["start old"])


def free_endpoint() -> Endpoint:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return Endpoint.parse(f"127.0.0.1:{probe.getsockname()[1]}")


def by_tcp(endpoint: Endpoint) -> int:
    with socket.create_connection((str(endpoint.address), endpoint.port), timeout=SECONDS) as connection:
        host = f"127.0.0.1:{endpoint.port}"
        connection.sendall(f"GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        return int(connection.recv(65536).split()[1])


def test_who_comes_by_tcp_meanwhile_waits_too(serve, following, told):
    """The read-only listener stays open over the change of workers."""
    endpoint = free_endpoint()
    old = Hooks(stop=lambda: (told("stopping"), time.sleep(0.5)))
    server = serve(old, web=endpoint, reload=Next(told, following(Hooks(), endpoint)))
    os.kill(server.pid, signal.SIGHUP)
    told.wait_for("stopping")
    assert by_tcp(endpoint) == 200


def test_another_address_by_tcp_holds_at_once(serve, following, told):
    """What was listened on is closed, and the new address answers."""
    before, after = free_endpoint(), free_endpoint()
    server = serve(web=before, reload=Next(told, following(Hooks(), after)))
    assert by_tcp(before) == 200
    os.kill(server.pid, signal.SIGHUP)
    told.wait_for("done")
    assert by_tcp(after) == 200
    with contextlib.suppress(ConnectionRefusedError):
        by_tcp(before)
        raise AssertionError("it still listens there")
