"""A real gunicorn on a real unix socket: who is asked, what headers may do, how it starts and ends."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import stat
import subprocess
import sys
import time

import pytest
import structlog

from nodeagent.api.server import Hooks, check_socket_path
from nodeagent.cli.logs import configure_logging
from nodeagent.domain.errors import OutsideFault

POST = b"POST /v1/leases HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def problem(raw: bytes) -> tuple[int, str]:
    head, _, body = raw.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head.lower()
    return int(head.split()[1]), json.loads(body)["code"]


@pytest.mark.parametrize(
    "header",
    [
        "SCRIPT_NAME: /v1",
        "Script-Name: /v1",
        "X-Script-Name: /v1",
        "PATH_INFO: /v1/node",
        "X-Forwarded-Proto: https",
        "X-Forwarded-Prefix: /v1",
        "X-Forwarded-For: 1.2.3.4",
        "X-Forwarded-User: root",
        "REMOTE_USER: root",
        "Forwarded: for=1.2.3.4;proto=https",
    ],
)
def test_forwarded_headers_change_nothing(serve, header):
    """A unix peer is a trusted proxy for gunicorn; here no header moves a path, a scheme or an identity."""
    server = serve()
    assert server.get("/v1/healthz", header)[0] == 404
    assert server.get("/healthz", header) == (200, {"status": "ok", "reason": None})


def test_every_user_may_connect(serve):
    """The socket's mode lets everybody ask; who they are is the kernel's word."""
    assert stat.S_IMODE(serve().path.stat().st_mode) == 0o666


@pytest.mark.root
def test_the_caller_is_the_peer(serve, agent):
    """A second user's own lease is its own, and root's is masked for it."""
    agent.add(4242)
    agent.add(0)
    server = serve()
    assert server.get_as(4242, "/v1/leases/1001")[1]["masked"] is False
    assert server.get_as(4242, "/v1/leases/1002")[1]["masked"] is True
    assert server.get_as(4243, "/v1/leases/1001")[1]["masked"] is True
    assert server.get("/v1/leases/1001")[1]["masked"] is False


def test_gunicorn_opens_nothing_else(serve, monkeypatch, tmp_path):
    """No control socket appears in the home or run-time directory."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    server = serve()
    time.sleep(0.2)  # gunicorn opens it after the first worker's fork
    assert list(tmp_path.rglob("*")) == []
    assert [entry.name for entry in server.path.parent.iterdir()] == ["api.sock"]


@pytest.mark.parametrize(
    ("raw", "status", "code"),
    [
        (b"nonsense\r\n\r\n", 400, "MalformedBody"),
        (b"GET / HTTP/9.9\r\n\r\n", 400, "MalformedBody"),
        (b"GET / HTTP/1.1\r\nHo st: x\r\n\r\n", 400, "MalformedBody"),
        (b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\n\r\n", 414, "TooLarge"),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 5000 + b"\r\n\r\n", 431, "TooLarge"),
        (b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 100 + b"\r\n", 431, "TooLarge"),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 40_000 + b"\r\n\r\n", 431, "TooLarge"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 411, "MalformedBody"),
        (POST + b"Content-Length: 99999999\r\n\r\n{", 413, "TooLarge"),
        (POST + b"Content-Length: 70000\r\n\r\n" + b" " * 70_000, 413, "TooLarge"),
        (POST + b"Content-Length: x\r\n\r\n{}", 400, "MalformedBody"),
        (POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x", 400, "MalformedBody"),
    ],
)
def test_what_is_no_request_gets_a_problem(serve, raw, status, code):
    """Also what the HTTP parser refuses is a problem document, and never a 5xx."""
    assert problem(serve().speak(raw)) == (status, code)


def test_one_request_per_connection(serve):
    """A second request in the same bytes is not answered: there is nothing to smuggle."""
    answer = serve().speak(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2)
    assert answer.count(b"HTTP/1.1") == 1


def test_curl_that_expects_a_continue_is_served(serve):
    """A client that waits for "100 Continue" gets it once, then its answer."""
    server = serve()
    with server.connect() as connection:
        connection.sendall(POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"{}")
        answer = connection.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1 201")


def test_a_request_may_come_in_any_pieces(serve):
    """Bytes that come one by one are a request like any."""
    with serve().connect() as connection:
        for byte in POST + b"Content-Length: 2\r\n\r\n{}":
            connection.send(bytes([byte]))
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 201")


def test_hooks_run_where_they_belong(serve, tmp_path):
    """Start and stop run in the worker, after the fork, each once."""
    log = tmp_path / "log"

    def note(word):
        def write():
            with log.open("a") as stream:
                stream.write(f"{word} {os.getpid()}\n")

        return write

    server = serve(Hooks(note("start"), note("stop")))
    os.kill(server.pid, signal.SIGTERM)
    deadline = time.monotonic() + 20
    while log.read_text().count("\n") < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    noted = dict(line.split() for line in log.read_text().splitlines())
    assert list(noted) == ["start", "stop"]
    assert str(server.pid) != noted["start"] == noted["stop"]


def test_a_killed_worker_is_replaced_without_a_refused_connection(serve, tmp_path):
    """The listening socket survives the worker: who connects meanwhile waits and is answered."""
    pids = tmp_path / "pids"
    server = serve(Hooks(start=lambda: pids.open("a").write(f"{os.getpid()}\n") and None))
    os.kill(int(pids.read_text().split()[0]), signal.SIGKILL)
    assert server.get("/healthz")[0] == 200


def test_gunicorns_own_lines_are_like_the_others(serve, tmp_path):
    """What it says of a dead worker is a line of JSON in the agent's log, and nowhere else."""
    pids, said = tmp_path / "pids", tmp_path / "log"
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    with said.open("a") as stream:
        configure_logging(stream)
        note = Hooks(start=lambda: pids.open("a").write(f"{os.getpid()}\n") and None)
        server = serve(note, log_level="error")
    root.handlers[:] = before
    root.setLevel(level)
    structlog.reset_defaults()
    pid = pids.read_text().split()[0]
    os.kill(int(pid), signal.SIGKILL)
    assert server.get("/healthz")[0] == 200
    (line,) = [json.loads(line) for line in said.read_text().splitlines()]
    assert line["level"] == "error" and line["event"].startswith(f"Worker (pid:{pid}) was sent SIGKILL")


def test_a_stale_socket_is_taken_over(serve, public_directory):
    """A socket file that nobody serves any more does not keep the agent from starting."""
    path = public_directory / "api.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert serve(socket=path).get("/healthz")[0] == 200


def test_a_served_socket_is_not_taken_away(serve):
    """A second agent on the same path is told of the first."""
    with pytest.raises(OutsideFault, match="another agent answers there"):
        check_socket_path(serve().path)


def test_an_impossible_socket_path_is_named(tmp_path):
    """Something that is no socket, a missing directory and a path too long are each said to be that."""
    (tmp_path / "file").write_text("precious")
    with pytest.raises(OutsideFault, match="no socket"):
        check_socket_path(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "precious"
    with pytest.raises(OutsideFault, match="does not exist"):
        check_socket_path(tmp_path / "none" / "api.sock")
    with pytest.raises(OutsideFault, match="at most 107 bytes"):
        check_socket_path(tmp_path / ("a" * 120))


ACTIVATED = """
import os, sys
from pathlib import Path
from flask import Flask
from nodeagent.api.admission import Lane
from nodeagent.api.server import AgentServer, Hooks, ServerSettings
os.environ["LISTEN_PID"] = str(os.getpid())
app = Flask("activated")
app.add_url_rule("/healthz", view_func=lambda: "activated")
os.dup2(int(sys.argv[2]), 3)
AgentServer(lambda: app, ServerSettings(Path(sys.argv[1]), lambda _: Lane(0, True)), Hooks()).run()
"""


def test_an_inherited_socket_is_served(public_directory):
    """With socket activation the service manager's socket is used, and it stays when the agent stops."""
    path = public_directory / "activated.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        process = subprocess.Popen(
            [sys.executable, "-c", ACTIVATED, str(path.with_name("other")), str(listener.fileno())],
            pass_fds=[listener.fileno()],
            env={**os.environ, "LISTEN_FDS": "1"},
            stderr=subprocess.DEVNULL,
        )
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(20)
                connection.connect(str(path))
                connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert connection.makefile("rb").read().endswith(b"activated")
        finally:
            process.terminate()
            process.wait(20)
    assert path.exists() and not path.with_name("other").exists()
