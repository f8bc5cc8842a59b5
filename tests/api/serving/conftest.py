"""A real server in processes of its own, and how to speak to it as anybody."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nodeagent.api.admission import Lane, Limits
from nodeagent.api.app import ApiSettings, create_app
from nodeagent.api.facade import Agent
from nodeagent.api.server import AgentServer, Hooks, ServerSettings
from nodeagent.api.web import WebSettings, over_tcp
from nodeagent.domain.clock import Clock
from nodeagent.service.orders import ANONYMOUS, Caller

ANSWER_SECONDS = 20  # generous: the machine may be busy
NO_HOOKS = Hooks()
DEFAULT_LIMITS = Limits()


@dataclass
class RunningServer:
    """A server of its own processes, and how to speak to it as anybody."""

    path: Path
    pid: int

    def connect(self, *, timeout: float = ANSWER_SECONDS) -> socket.socket:
        found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        found.settimeout(timeout)
        found.connect(str(self.path))
        return found

    def speak(self, raw: bytes) -> bytes:
        """Send *raw* and read to the end of the answer; what the server did not care to read is no fault."""
        with self.connect() as connection:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(raw)
            return read_all(connection)

    def get(self, path: str, *headers: str) -> tuple[int, Any]:
        """Status and JSON body of a GET."""
        head = "\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", *headers, "", ""])
        return parse(self.speak(head.encode("utf-8")))

    def workers(self) -> list[int]:
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def get_as(self, uid: int, path: str) -> tuple[int, Any]:
        """A GET by a real process of *uid*; (0, None) where it got no answer."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                become(uid)
                os.write(writer, json.dumps(self.get(path)).encode())
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as stream:
            told = stream.read()
        os.waitpid(child, 0)
        status, body = json.loads(told) if told else (0, None)
        return status, body


def parse(raw: bytes) -> tuple[int, Any]:
    head, _, body = raw.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    try:
        return int(words[1]), json.loads(body)
    except (IndexError, ValueError):
        return (int(words[1]) if len(words) > 1 else 0), body.decode("utf-8", "replace")


def read_all(connection: socket.socket) -> bytes:
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            received += part
    return received


def become(uid: int) -> None:
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


def credentials(sock: socket.socket) -> tuple[int, int, int]:
    """The peer's pid, uid and gid."""
    return struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))


def by_uid(sock: socket.socket) -> Lane:
    """The peer's uid; root's lane is reserved."""
    if sock.family != socket.AF_UNIX:
        return Lane(ANONYMOUS, False)
    _, uid, _ = credentials(sock)
    return Lane(uid, uid == 0)


@pytest.fixture
def identify_peer(caller_of: Callable[..., Caller]) -> Callable[[Mapping[str, Any]], Caller]:
    """Whoever the kernel says is at the other end; root is the administrator."""

    def identify(environ: Mapping[str, Any]) -> Caller:
        if over_tcp(environ):
            return caller_of(ANONYMOUS)
        pid, uid, _ = credentials(environ["gunicorn.socket"])
        return caller_of(uid, pid=pid)

    return identify


@pytest.fixture
def public_directory() -> Iterator[Path]:
    """A directory that every user may enter, which pytest's own are not."""
    path = Path(tempfile.mkdtemp(prefix="nodeagent-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def serve(
    public_directory: Path, agent: Agent, clock: Clock, identify_peer: Callable[[Mapping[str, Any]], Caller]
) -> Iterator[Callable[..., RunningServer]]:
    """Start a real server on a unix socket, in processes of its own, and stop it afterwards."""
    started: list[int] = []

    def start(hooks: Hooks = NO_HOOKS, limits: Limits = DEFAULT_LIMITS, **changes: Any) -> RunningServer:
        path, reload = changes.pop("socket", public_directory / "api.sock"), changes.pop("reload", None)
        settings = ServerSettings(
            socket=path,
            classify=by_uid,
            limits=limits,
            graceful_seconds=1,
            **{"log_level": "critical", **changes},
        )
        pid = os.fork()
        if pid == 0:
            try:
                web = changes.get("web")
                api = ApiSettings(clock=clock, version="0.1.0", web=web and WebSettings(web, web.hosts()))
                AgentServer(lambda: create_app(agent, identify_peer, api), settings, hooks, reload).run()
            finally:
                os._exit(1)
        started.append(pid)
        server = RunningServer(path, pid)
        await_answer(server)
        return server

    yield start
    for pid in started:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)


def await_answer(server: RunningServer) -> None:
    deadline = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if server.get("/healthz")[0] == 200:
                return
        time.sleep(0.02)
    raise AssertionError("the server does not answer")
