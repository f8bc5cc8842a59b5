"""The engine's API over its socket: what it says is checked, and what it does not say is no answer."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any

import pytest

from nodeagent.adapters.engine import EngineInfo, EngineSocket, Running
from nodeagent.domain.container import Seen
from nodeagent.domain.errors import OutsideFault

ID = "0123456789abcdef" * 4
Answers = dict[tuple[str, str], tuple[int, Any]]


class _Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True
    answers: Answers


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        status, body = self.server.answers.get((self.command, path), (404, {"message": "no such thing"}))
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = _answer

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[Answers], EngineSocket]]:
    """An engine with scripted answers, by method and path."""
    servers: list[_Server] = []

    def start(answers: Answers) -> EngineSocket:
        path = tmp_path / "engine.sock"
        server = _Server(str(path), _Handler)
        server.answers = answers
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return EngineSocket(path)

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


Serve = Callable[[Answers], EngineSocket]


def test_how_an_engine_makes_cgroups(serve: Serve) -> None:
    """Of a docker before 20.10, which does not say the version, it is 1."""
    engine = serve({("GET", "/info"): (200, {"CgroupDriver": "systemd", "CgroupVersion": "2"})})
    assert engine.info() == EngineInfo("systemd", "2")


def test_an_old_engine_has_cgroups_of_version_1(serve: Serve) -> None:
    """Docker says the version since 20.10."""
    assert serve({("GET", "/info"): (200, {"CgroupDriver": "cgroupfs"})}).info().version == "1"


def test_containers_are_listed_with_what_they_call_themselves(serve: Serve) -> None:
    """Names lose their slash; what is no container of any engine is left out."""
    told = [
        {"Id": ID, "Names": ["/web", "/other/web"], "State": "running", "Labels": {"a": "b"}, "Created": 7},
        {"Id": ID[:12], "Names": ["/short"]},
        {"Id": "f" * 64, "Names": None, "State": "Exited", "Labels": None, "Created": "today"},
        "nonsense",
    ]
    listed = serve({("GET", "/containers/json"): (200, told)}).containers()
    assert listed == (
        Seen(ID, ("web",), "running", {"a": "b"}, 7),
        Seen("f" * 64, (), "exited", {}, 0),
    )


def test_what_a_container_is_now(serve: Serve) -> None:
    """With the first process of one that runs; an engine that names another container says nothing of it."""
    other = "e" * 64
    engine = serve(
        {
            ("GET", f"/containers/{ID}/json"): (200, {"Id": ID, "State": {"Status": "running", "Pid": 77}}),
            ("GET", f"/containers/{other}/json"): (200, {"Id": ID, "State": {"Status": "running"}}),
        }
    )
    assert engine.running(ID) == Running(ID, "running", 77)
    assert engine.running(other) is None
    assert engine.running("d" * 64) is None


@pytest.mark.parametrize("container", ["web", ID[:12], f"{ID}/../x", ""])
def test_only_whole_ids_are_asked_for(serve: Serve, container: str) -> None:
    """A name may be another container's by now, and a path another call."""
    engine = serve({})
    for ask in (engine.running, engine.kill):
        with pytest.raises(OutsideFault, match="no container's id"):
            ask(container)


@pytest.mark.parametrize("answer", [(500, {}), (200, b"{"), (200, {}), (200, "x")])
def test_a_bad_answer_is_a_fault(serve: Serve, answer: tuple[int, Any]) -> None:
    """Never an empty list: that would be the end of every lease."""
    with pytest.raises(OutsideFault, match=r"engine\.sock"):
        serve({("GET", "/containers/json"): answer}).containers()


def test_an_engine_that_is_not_there_is_a_fault(tmp_path: Path) -> None:
    """It names the socket."""
    with pytest.raises(OutsideFault, match="no engine listens here"):
        EngineSocket(tmp_path / "none.sock").containers()


def test_an_engine_that_hangs_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts, and says nothing."""
    monkeypatch.setattr("nodeagent.adapters.engine.SECONDS", 0.1)
    path = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        with pytest.raises(OutsideFault):
            EngineSocket(path).containers()


@pytest.mark.root
def test_another_users_socket_is_believed_by_nobody(tmp_path: Path) -> None:
    """Who could put it there would say which leases have ended."""
    tmp_path.chmod(0o777)
    for parent in tmp_path.parents[:3]:
        parent.chmod(parent.stat().st_mode | 0o011)
    path = tmp_path / "engine.sock"
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.setuid(65534)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            listening.listen()
            os.write(ready[1], b"x")
            os.read(done[0], 1)
        os._exit(0)
    try:
        os.read(ready[0], 1)
        with pytest.raises(OutsideFault, match="served by uid 65534"):
            EngineSocket(path).containers()
    finally:
        os.write(done[1], b"x")
        os.waitpid(child, 0)


def test_an_event_is_a_reason_to_look(serve: Serve) -> None:
    """One item for each, until the engine ends the connection; what it says is not looked at."""
    engine = serve({("GET", "/events"): (200, b'{"status":"die"}\nnonsense\n')})
    with engine.events() as events:
        assert len(list(events)) == 2
