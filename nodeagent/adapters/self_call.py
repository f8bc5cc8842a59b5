"""A request of the agent to its own socket, which waits for nothing: proof that others are answered, too."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_REQUEST = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
_GIVE_UP_SECONDS = 20.0  # the server ends a connection in time; a thread of its own may hang
_READ = 1 << 16


@dataclass(frozen=True, slots=True)
class Answer:
    """*why*: what keeps grants back, None where nothing does."""

    why: str | None


class SelfCall:
    """Asks /readyz at *path*, by root's own threads: what users do to theirs is no sign of a sick agent."""

    def __init__(self, path: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._monotonic = monotonic
        self._connection: socket.socket | None = None
        self._received = b""
        self._asked = 0.0

    def poll(self) -> Answer | None:
        """The answer, if one has come; else ask, unless that is done already. Never waits."""
        if self._connection is None:
            self._ask()
            return None
        try:
            while received := self._connection.recv(_READ):
                self._received += received
        except BlockingIOError:
            if self._monotonic() - self._asked > _GIVE_UP_SECONDS:
                self.close()
            return None
        except OSError:
            self.close()
            return None
        answer = _parsed(self._received)
        self.close()
        return answer

    def close(self) -> None:
        """Drop what is under way."""
        if self._connection is not None:
            self._connection.close()
        self._connection, self._received = None, b""

    def _ask(self) -> None:
        try:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError:  # no descriptor is left, which a restart mends
            return
        try:
            connection.connect(os.fspath(self._path))
            connection.send(_REQUEST)
        except OSError:
            connection.close()
            return  # its queue is full, or it does not listen: no answer, either
        self._connection, self._asked = connection, self._monotonic()


def _parsed(answer: bytes) -> Answer | None:
    """What was answered; None where that is no answer of the agent's."""
    head, _, body = answer.partition(b"\r\n\r\n")
    match head.split(b" ", 2):
        case [b"HTTP/1.1", b"200", _]:
            return Answer(None)
        case [b"HTTP/1.1", status, _] if status.isdigit():
            return Answer(_detail(body) or f"/readyz answers {status.decode()}")
    return None


def _detail(body: bytes) -> str | None:
    try:
        told = json.loads(body)
    except ValueError:
        return None
    return str(told.get("detail", "")) or None if isinstance(told, dict) else None
