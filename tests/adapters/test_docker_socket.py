"""docker's plugin protocol by a unix socket: what dockerd asks, and what is odd."""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeagent.adapters.docker_socket import Server, listening
from nodeagent.domain.docker_body import Request
from nodeagent.domain.errors import OutsideFault


class Asked:
    """A plugin that keeps what it was asked, and says what it is told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[Request, bytes | None]] = []
        self.why: str | None = None

    def before(self, request: Request) -> str | None:
        if request.uri == "/fault":
            raise ValueError("a bug")
        self.calls.append((request, None))
        return self.why

    def after(self, request: Request, answer: bytes) -> str | None:
        self.calls.append((request, answer))
        return self.why


@pytest.fixture
def plugin() -> Asked:
    """The plugin behind the socket."""
    return Asked()


@pytest.fixture
def path(plugin: Asked, tmp_path: Path) -> Iterator[Path]:
    """The socket that it is served on."""
    place = tmp_path / "s"
    with Server(listening(place), plugin) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.02])
        thread.start()
        yield place
        server.shutdown()
        thread.join()


class Connection(http.client.HTTPConnection):
    """HTTP by a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("docker", timeout=20)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(20)
        self.sock.connect(str(self._path))


def ask(path: Path, call: str, body: bytes | None) -> Any:
    connection = Connection(path)
    connection.request("POST", call, body=body)
    return json.loads(connection.getresponse().read())


def said(**more: Any) -> bytes:
    return json.dumps({"RequestMethod": "POST", "RequestUri": "/v1.41/x", **more}).encode()


def test_it_says_what_it_is(path: Path) -> None:
    """dockerd asks once, without a body."""
    assert ask(path, "/Plugin.Activate", None) == {"Implements": ["authz"]}


def test_a_request_is_handed_on_as_dockerd_says_it(path: Path, plugin: Asked) -> None:
    """Bodies come in base64; names of headers in any case."""
    raw = b'{"a":1}\xff'
    body = said(RequestBody=base64.b64encode(raw).decode(), RequestHeaders={"Content-Type": "x"})
    assert ask(path, "/AuthZPlugin.AuthZReq", body) == {"Allow": True, "Msg": ""}
    assert plugin.calls == [(Request("POST", "/v1.41/x", {"content-type": "x"}, raw), None)]


def test_an_answer_is_handed_on(path: Path, plugin: Asked) -> None:
    """Also one without a body."""
    for answer in (b"{}", b""):
        assert ask(path, "/AuthZPlugin.AuthZRes", said(ResponseBody=base64.b64encode(answer).decode()))[
            "Allow"
        ]
    assert [answer for _, answer in plugin.calls] == [b"{}", b""]


def test_a_refusal_says_why(path: Path, plugin: Asked) -> None:
    """dockerd shows the reason to who asked."""
    plugin.why = "no"
    assert ask(path, "/AuthZPlugin.AuthZReq", said()) == {"Allow": False, "Msg": "no"}


@pytest.mark.parametrize(
    ("call", "body"),
    [
        ("/AuthZPlugin.AuthZReq", b""),
        ("/AuthZPlugin.AuthZReq", b"x"),
        ("/AuthZPlugin.AuthZReq", b"[]"),
        ("/AuthZPlugin.AuthZReq", b"null"),
        ("/AuthZPlugin.AuthZReq", b"{}"),
        ("/AuthZPlugin.AuthZReq", said(RequestBody="not base64!")),
        ("/AuthZPlugin.AuthZReq", said(RequestHeaders=[1])),
        ("/AuthZPlugin.AuthZReq", said(RequestUri="/fault")),
        ("/AuthZPlugin.AuthZRes", said(ResponseBody=7)),
        ("/AuthZPlugin.Other", said()),
        ("/", b""),
    ],
    ids=str,
)
def test_what_is_odd_is_refused(path: Path, call: str, body: bytes) -> None:
    """A fault of the plugin's own is a refusal, too."""
    answer = ask(path, call, body)
    assert answer["Allow"] is False
    assert answer["Msg"]
    assert ask(path, "/Plugin.Activate", None)


def test_more_than_dockerd_hands_on_is_refused(path: Path) -> None:
    """It is not even read; what Debian's dockerd hands on at most is."""
    connection = Connection(path)
    connection.putrequest("POST", "/AuthZPlugin.AuthZReq")
    connection.putheader("Content-Length", str(17 << 20))
    connection.endheaders()
    assert json.loads(connection.getresponse().read())["Allow"] is False
    whole = base64.b64encode(b" " * (4 << 20)).decode()
    assert ask(path, "/AuthZPlugin.AuthZReq", said(RequestBody=whole))["Allow"] is True


def test_connections_that_say_nothing_hold_up_nobody(path: Path) -> None:
    """dockerd asks beside them."""
    idle = [socket.socket(socket.AF_UNIX) for _ in range(20)]
    for each in idle:
        each.connect(str(path))
    assert ask(path, "/Plugin.Activate", None)
    for each in idle:
        each.close()


def test_the_socket_is_roots_alone(path: Path) -> None:
    """Others could ask what a ticket is worth."""
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.root
def test_only_dockerd_is_answered(path: Path) -> None:
    """Another user is not, even where the socket's file would let it in."""
    with tempfile.TemporaryDirectory() as open_:
        Path(open_).chmod(0o755)
        door = Path(open_, "s")
        door.hardlink_to(path)
        door.chmod(0o666)
        words = ["setpriv", "--reuid=54321", "--clear-groups", "curl", "-qsS", "--unix-socket", str(door)]
        asked = ["-X", "POST", "http://plugin/Plugin.Activate"]
        done = subprocess.run([*words, *asked], capture_output=True, text=True, check=False)
        assert "authz" not in done.stdout
        assert done.returncode != 0
        assert ask(door, "/Plugin.Activate", None)


def test_a_second_plugin_leaves_the_first(path: Path) -> None:
    """A socket that answers is not taken over, one that was left is."""
    with pytest.raises(OutsideFault, match="another plugin"):
        listening(path)


def test_a_socket_that_was_left_is_taken_over(tmp_path: Path) -> None:
    """A plugin that was killed starts again."""
    listening(tmp_path / "s").close()
    listening(tmp_path / "s").close()


def test_systemds_socket_is_used(tmp_path: Path) -> None:
    """It outlives the plugin, so that dockerd waits for the next one."""
    own = socket.socket(socket.AF_UNIX)
    own.bind(str(tmp_path / "s"))
    own.listen()
    words = "import os; os.environ['LISTEN_PID'] = str(os.getpid()); "
    words += "from nodeagent.adapters.docker_socket import listening; print(listening('/none').getsockname())"

    def hand() -> None:
        os.dup2(own.fileno(), 3)

    done = subprocess.run(
        [sys.executable, "-c", words],
        preexec_fn=hand,
        close_fds=False,
        env={**os.environ, "LISTEN_FDS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    own.close()
    assert done.stdout.strip() == str(tmp_path / "s"), done.stderr


def test_the_plugin_is_small() -> None:
    """It loads none of the agent's libraries: it starts at once and outlives what the agent needs."""
    words = "import sys, nodeagent.cli.docker_plugin; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    heavy = {"flask", "sqlalchemy", "pydantic", "gunicorn", "psutil", "structlog", "alembic", "pyroute2"}
    assert not heavy & set(done.stdout.split())
