"""docker's plugin protocol: HTTP by a unix socket, from dockerd to its authorization plugin.

``POST /Plugin.Activate``, ``/AuthZPlugin.AuthZReq`` before each of docker's calls and
``/AuthZPlugin.AuthZRes`` after it (docs.docker.com/engine/extend/plugins_authorization). Whatever is odd is
answered with a refusal.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import socketserver
import struct
import sys
import threading
import traceback
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Protocol

from nodeagent.adapters.private_directory import check_private
from nodeagent.domain.docker_body import Request
from nodeagent.domain.errors import AgentError, OutsideFault

SOCKET = Path("/run/docker/plugins/nodeagent.sock")
_THREADS = 64
_SECONDS = 10.0  # for each read and write: dockerd is the only one who may connect
# Debian's dockerd hands on bodies up to 4 MiB, in base64, with 64 KiB of the answer's.
_LARGEST = 16 * 1024 * 1024
_FIRST_HANDED = 3  # SD_LISTEN_FDS_START, sd_listen_fds(3)
_TYPE = "application/vnd.docker.plugins.v1.1+json"
_UCRED = struct.Struct("iII")


class Plugin(Protocol):
    """What judges the calls; both say why not, or None."""

    def before(self, request: Request) -> str | None:
        """Why dockerd may not serve *request*."""

    def after(self, request: Request, answer: bytes) -> str | None:
        """Why the client may not have the JSON *answer*; it is empty where dockerd's own handler failed."""


def listening(path: Path) -> socket.socket:
    """The socket that systemd hands over, else a new one at *path*, root's alone.

    Raises:
        OutsideFault: others may write to its directory, or something answers there.
    """
    if os.environ.get("LISTEN_PID") == str(os.getpid()) and os.environ.get("LISTEN_FDS") == "1":
        return socket.socket(fileno=_FIRST_HANDED)
    check_private(path.parent)
    own = socket.socket(socket.AF_UNIX)
    try:
        if own.connect_ex(os.fspath(path)) == 0:
            raise OutsideFault(path, "another plugin answers here: stop it first")
        path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            own.bind(os.fspath(path))
        finally:
            os.umask(before)
        own.listen(128)
    except OSError as fault:
        own.close()
        raise OutsideFault(path, f"cannot listen: {fault.strerror}") from fault
    return own


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Serves *plugin* on *sock*: a thread for each call, 64 at most; others wait in the kernel's line."""

    def __init__(self, sock: socket.socket, plugin: Plugin) -> None:
        super().__init__(sock.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = sock
        self.plugin = plugin
        self._free = threading.BoundedSemaphore(_THREADS)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Only root, or who runs the plugin, is dockerd."""
        peer = request.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        return _UCRED.unpack(peer)[1] in (0, os.geteuid())

    def process_request(self, request: Any, client_address: Any) -> None:
        """Wait for a free thread, then hand *request* to it."""
        self._free.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """In the thread: answer, and give the thread's place back whatever comes."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """dockerd went away, or was too slow: it takes no answer for a refusal."""
        print(f"docker-plugin: {sys.exception()!r}", file=sys.stderr, flush=True)


class _Handler(BaseHTTPRequestHandler):
    """One call of dockerd's. HTTP/1.0: a connection that is closed is never reused while it closes."""

    server: Server
    timeout = _SECONDS

    def do_POST(self) -> None:
        try:
            said = self._answer(self._body())
        except AgentError as fault:
            said = _verdict(str(fault))
        except Exception as fault:
            traceback.print_exc()
            said = _verdict(f"the plugin failed: {type(fault).__name__}")
        if said.get("Msg"):
            print(f"docker-plugin: refused: {said['Msg']}", file=sys.stderr, flush=True)
        self._send(said)

    def _body(self) -> Any:
        size = int(self.headers.get("Content-Length") or 0)
        if not 0 <= size <= _LARGEST:
            raise OutsideFault(self.path, f"{size} bytes are more than dockerd hands on")
        return json.loads(self.rfile.read(size) or b"{}")

    def _answer(self, said: Any) -> dict[str, Any]:
        plugin = self.server.plugin
        match self.path:
            case "/Plugin.Activate":
                return {"Implements": ["authz"]}
            case "/AuthZPlugin.AuthZReq":
                return _verdict(plugin.before(_request(said)))
            case "/AuthZPlugin.AuthZRes":
                return _verdict(plugin.after(_request(said), _bytes(said.get("ResponseBody"))))
            case _:
                raise OutsideFault(self.path[:80], "docker's plugin protocol has no such call")

    def _send(self, said: dict[str, Any]) -> None:
        words = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("Content-Type", _TYPE)
        self.send_header("Content-Length", str(len(words)))
        self.end_headers()
        self.wfile.write(words)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of calls that pass."""


def _verdict(why: str | None) -> dict[str, Any]:
    return {"Allow": why is None, "Msg": why or ""}


def _request(said: Any) -> Request:
    headers = said.get("RequestHeaders") or {}
    return Request(
        method=said["RequestMethod"],
        uri=said["RequestUri"],
        headers={name.lower(): value for name, value in headers.items()},
        body=_bytes(said.get("RequestBody")),
    )


def _bytes(text: str | None) -> bytes:
    return base64.b64decode(text or "", validate=True)
