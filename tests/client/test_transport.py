"""Calls over the socket: retries, deadlines, and whom we talk to."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpulease.errors import AgentUnreachable, ForeignServer, NotAllowed
from gpulease.transport import Transport


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.at = 0.0
        self.slept: list[float] = []
        self.on_sleep: Callable[[], None] = lambda: None

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds
        self.slept.append(seconds)
        self.on_sleep()


@pytest.fixture
def time() -> Time:
    return Time()


def transport(path: str, time: Time) -> Transport:
    return Transport(path, timeout=8, now=time.now, sleep=time.sleep)


@contextmanager
def speaking(path: Path, *answers: bytes) -> Iterator[None]:
    """A server that answers each connection with raw bytes."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            for answer in answers:
                connection, _ = server.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield


def test_answer(agent: Any, time: Time) -> None:
    """A call brings the status, the headers in lower case and the body."""
    answer = transport(agent.path, time).call("GET", "/v1/devices")
    assert (answer.status, answer.headers["content-length"], time.slept) == (200, str(len(answer.body)), [])


def test_absent_socket(tmp_path: Path, time: Time) -> None:
    """An absent socket is tried again, ever more slowly, until the deadline, and the error names it."""
    with pytest.raises(AgentUnreachable, match="No such file"):
        transport(str(tmp_path / "no.sock"), time).call("GET", "/")
    assert len(time.slept) > 5
    assert 0.02 <= time.slept[0] <= 0.08
    assert max(time.slept) <= 1.5
    assert time.at < 8


def test_refused_socket(tmp_path: Path, time: Time) -> None:
    """A socket that nobody listens on is tried again."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "dead.sock"))
    with pytest.raises(AgentUnreachable, match="refused"):
        transport(str(tmp_path / "dead.sock"), time).call("GET", "/")
    assert len(time.slept) > 5


def test_agent_comes_back(agent: Any, time: Time) -> None:
    """A call made while the agent restarts succeeds once it is back."""
    hidden = Path(agent.path).with_suffix(".hidden")
    Path(agent.path).rename(hidden)
    time.on_sleep = lambda: len(time.slept) == 3 and hidden.rename(agent.path)
    assert transport(agent.path, time).call("GET", "/v1/node").status == 200


def test_broken_off(agent: Any, time: Time) -> None:
    """A connection that closes without an answer is made again."""
    agent.canned = [None, None]
    assert transport(agent.path, time).call("GET", "/v1/node").status == 200
    assert len(agent.requests) == 3


@pytest.mark.parametrize("status", [429, 503])
def test_unhealthy_with_retry_after(status, agent: Any, time: Time) -> None:
    """A 503 or 429 that says when to come back is tried again then, give or take the jitter."""
    agent.canned = [(status, {"code": "LedgerUnavailable"}, {"Retry-After": "2"})]
    assert transport(agent.path, time).call("GET", "/v1/node").status == 200
    assert 1 <= time.slept[0] <= 3


def test_unhealthy_beyond_the_deadline(agent: Any, time: Time) -> None:
    """A 503 that lies beyond the deadline is the answer."""
    agent.canned = [(503, {"code": "LedgerUnavailable"}, {"Retry-After": "60"})]
    assert transport(agent.path, time).call("GET", "/v1/node").status == 503
    assert time.slept == []


def test_unhealthy_without_retry_after(agent: Any, time: Time) -> None:
    """A 503 that does not ask to be tried again is not."""
    agent.canned = [(503, {}, {})]
    assert transport(agent.path, time).call("GET", "/v1/node").status == 503


def test_jitter(agent: Any, tmp_path: Path) -> None:
    """Two clients that fail together do not come back together."""
    pauses = []
    for _ in range(2):
        time = Time()
        with pytest.raises(AgentUnreachable):
            transport(str(tmp_path / "no.sock"), time).call("GET", "/")
        pauses.append(time.slept)
    assert pauses[0] != pauses[1]


def test_chunked(tmp_path: Path, time: Time) -> None:
    """A chunked body is put together."""
    raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"
    with speaking(tmp_path / "s", raw):
        assert transport(str(tmp_path / "s"), time).call("GET", "/").body == b"abcde"


@pytest.mark.parametrize(
    "cut",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
    ],
)
def test_truncated(tmp_path: Path, time: Time, cut: bytes) -> None:
    """Half an answer is none: the call is made again."""
    with speaking(tmp_path / "s", cut, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"):
        assert transport(str(tmp_path / "s"), time).call("GET", "/").body == b"ok"


def test_something_else(tmp_path: Path, time: Time) -> None:
    """A server that does not speak HTTP is no agent, and is not asked again."""
    with speaking(tmp_path / "s", b"SSH-2.0-OpenSSH\r\n\r\n"), pytest.raises(AgentUnreachable, match="HTTP"):
        transport(str(tmp_path / "s"), time).call("GET", "/")


def test_endless_answer(tmp_path: Path, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer larger than any of the agent's is given up."""
    monkeypatch.setattr("gpulease.transport.MAX_ANSWER_BYTES", 1000)
    with speaking(tmp_path / "s", b"x" * 200_000), pytest.raises(AgentUnreachable, match="larger"):
        transport(str(tmp_path / "s"), time).call("GET", "/")


def test_silent_server(tmp_path: Path) -> None:
    """A server that takes the call and says nothing is given up at the deadline."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        with pytest.raises(AgentUnreachable, match="deadline"):
            Transport(str(tmp_path / "s"), timeout=0.2).call("GET", "/")


def test_too_long_a_path(time: Time) -> None:
    """A path that no socket can have fails at once."""
    with pytest.raises(AgentUnreachable):
        transport("/" + "x" * 200, time).call("GET", "/")
    assert time.slept == []


@pytest.mark.root
def test_foreign_server(tmp_path: Path, time: Time, until: Callable[[Callable[[], Any]], Any]) -> None:
    """A server of another user gets nothing from us: $GPULEASE_SOCKET may be an attacker's."""
    tmp_path.chmod(0o777)
    for parent in tmp_path.parents[:3]:
        parent.chmod(parent.stat().st_mode | 0o011)
    path = tmp_path / "s"
    code = (
        "import os, socket, sys\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); os.chmod(sys.argv[1], 0o666); s.listen()\n"
        "print('listening', flush=True)\n"
        "c, _ = s.accept()\n"
        "print(c.recv(100), flush=True)\n"
    )
    server = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == "listening\n"
        with pytest.raises(ForeignServer, match="uid 65534"):
            transport(str(path), time).call("GET", "/secret")
        assert server.stdout.read() == "b''\n"
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


@pytest.mark.root
def test_own_server_of_a_user(tmp_path: Path) -> None:
    """A private agent of the user's own is fine."""
    child = os.fork()
    if child == 0:
        try:
            os.chdir(tmp_path)
            tmp_path.chmod(0o777)
            os.setgid(65534)
            os.setuid(65534)
            with speaking(Path("own"), b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"):
                status = Transport("own", timeout=5).call("GET", "/").status
            os._exit(0 if status == 200 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.root
def test_socket_that_may_not_be_opened(agent: Any) -> None:
    """A socket closed to the user is "not allowed", and at once: it is no agent that comes back."""
    Path(agent.path).chmod(0o600)
    child = os.fork()
    if child == 0:
        try:
            os.chdir(Path(agent.path).parent)
            os.setgid(65534)
            os.setuid(65534)
            Transport("api.sock", timeout=60).call("GET", "/v1/node")
        except NotAllowed:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
