"""An agent as the scripts see it: a unix socket whose answers a test plays, and which notes who asked."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Play = Callable[["PlayedAgent", socket.socket], None]
HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True)
class Asked:
    """One call as it arrived, and the process that made it."""

    line: str
    headers: dict[str, str]
    body: bytes
    command: list[bytes]
    environment: bytes
    pid: int

    @property
    def fields(self) -> dict[bytes, bytes]:
        return dict(one.split(b"=", 1) for one in self.body.split(b"\0") if one)

    @property
    def seconds(self) -> float:
        """What the caller was given for this call: curl's --max-time, or the last argument of ask.py."""
        at = self.command.index(b"--max-time") + 1 if b"--max-time" in self.command else -1
        return float(self.command[at])


class PlayedAgent:
    """Answers the calls on *path* with *plays*, one after the other; the last one is repeated."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.plays: list[Play] = []
        self.asked: list[Asked] = []
        self._kept: list[socket.socket] = []
        self._closing = False
        self.listen()

    def play(self, *plays: str | Play) -> None:
        """A text is a 200 answer with that text."""
        self.plays = [says(one) if isinstance(one, str) else one for one in plays]

    def listen(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self.path.chmod(0o666)
        self._listener.listen(16)
        threading.Thread(target=self._serve, args=(self._listener,), daemon=True).start()

    def vanish(self) -> None:
        """Stop to listen, and take the socket away."""
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def close(self) -> None:
        self._closing = True
        self.vanish()
        for one in self._kept:
            one.close()

    def keep(self, connection: socket.socket) -> None:
        """Leave *connection* open until the test ends."""
        self._kept.append(connection)

    def _serve(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while not self._closing:
                connection, _ = listener.accept()
                threading.Thread(target=self._take, args=(connection,), daemon=True).start()

    def _take(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            asked = receive(connection)
            play = self.plays[min(len(self.asked), len(self.plays) - 1)]
            self.asked.append(asked)
            play(self, connection)
            if connection not in self._kept:
                connection.close()


def receive(connection: socket.socket) -> Asked:
    """Read one request with a Content-Length, and look at its sender while it waits."""
    data = b""
    while HEAD_END not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(HEAD_END)
    line, *rest = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, value in (one.split(": ", 1) for one in rest)}
    while len(body) < int(headers["content-length"]):
        body += connection.recv(65536)
    pid, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    process = Path(f"/proc/{pid}")
    command = (process / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    return Asked(line, headers, body, command, (process / "environ").read_bytes(), pid)


def says(text: str | bytes, status: int = 200, length: int | None = None) -> Play:
    """Answer *text*; a *length* beyond it announces more than will come."""
    body = text if isinstance(text, bytes) else text.encode()

    def play(agent: PlayedAgent, connection: socket.socket) -> None:
        size = len(body) if length is None else length
        head = f"HTTP/1.1 {status} Status\r\nContent-Type: text/plain\r\nContent-Length: {size}\r\n\r\n"
        connection.sendall(head.encode() + body)

    return play


def raw(data: bytes) -> Play:
    """Answer bytes that need not be HTTP."""
    return lambda agent, connection: connection.sendall(data)


def closes(agent: PlayedAgent, connection: socket.socket) -> None:
    """Close the connection without a word, as an agent that is killed does."""


def hangs(agent: PlayedAgent, connection: socket.socket) -> None:
    """Say nothing, as an agent that is stopped does."""
    agent.keep(connection)


def late(seconds: float, text: str) -> Play:
    """Answer after *seconds*."""

    def play(agent: PlayedAgent, connection: socket.socket) -> None:
        time.sleep(seconds)
        says(text)(agent, connection)

    return play


def restarts(agent: PlayedAgent, connection: socket.socket) -> None:
    """Die in the middle of the call, and be back a moment later."""
    agent.vanish()
    connection.close()
    threading.Timer(0.5, agent.listen).start()


def seconds_given(agent: PlayedAgent) -> list[float]:
    return [one.seconds for one in agent.asked]
