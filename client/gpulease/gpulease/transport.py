"""HTTP/1.1 over a unix socket by hand: http.client alone would double the start-up time of a prolog's call.

One request per connection. Whatever the agent offers may safely be repeated (grants carry a request id), so a
call that broke off is made again until its deadline.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Optional

from gpulease.errors import AgentUnreachable, ForeignServer, NotAllowed

MAX_HEAD_BYTES = 64 << 10
MAX_ANSWER_BYTES = 32 << 20  # a full page of leases on the largest node is below 1 MiB
_ASK_AGAIN = (429, 503)
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0
_COMING_BACK = frozenset({errno.ECONNREFUSED, errno.ENOENT, errno.EAGAIN})
_NOBODY_YET = 2**32 - 1  # the peer of a socket that is not connected
_BROKE_OFF = frozenset({errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED})


@dataclass(frozen=True)
class Answer:
    """One complete answer. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def retry_after(self) -> Optional[float]:
        """Seconds after which the agent wants to be asked again; None where it does not say."""
        try:
            return max(0.0, float(self.headers["retry-after"]))
        except (KeyError, ValueError):
            return None


class _Again(Exception):
    """This attempt failed in a way that passes by itself."""


def _jitter() -> float:
    """A random factor in [0.5, 1.5): clients that failed together must not come back together."""
    return 0.5 + int.from_bytes(os.urandom(2), "big") / 65536


class Transport:
    """Calls to the agent behind one socket."""

    def __init__(
        self,
        path: str,
        *,
        timeout: float,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.path = path
        self._timeout = timeout
        self._now = now
        self._sleep = sleep

    def call(
        self, method: str, target: str, body: Optional[bytes] = None, *, extra_seconds: float = 0.0
    ) -> Answer:
        """Ask until there is an answer or the deadline (the timeout plus *extra_seconds*) has passed.

        A 503 or 429 with Retry-After is asked again too, if the deadline leaves the time: tasks of one user
        that start at once are over the connections of a uid only for a moment. Else it is the answer.

        Raises:
            AgentUnreachable: no complete answer came.
            ForeignServer: the socket is served by somebody else; nothing was sent.
            NotAllowed: the socket may not be opened.
        """
        deadline = self._now() + self._timeout + extra_seconds
        request = _request(method, target, body)
        pause = _FIRST_PAUSE_SECONDS
        while True:
            unhealthy: Optional[Answer] = None
            why = ""
            wanted = pause * _jitter()
            try:
                answer = self._attempt(request, deadline)
                if answer.status not in _ASK_AGAIN or answer.retry_after is None:
                    return answer
                unhealthy = answer
                wanted = max(answer.retry_after * _jitter(), wanted)
            except _Again as passing:
                why = str(passing)
            if self._now() + wanted >= deadline:
                if unhealthy is not None:
                    return unhealthy
                raise AgentUnreachable(f"{self.path}: {why}")
            self._sleep(wanted)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    def _attempt(self, request: bytes, deadline: float) -> Answer:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            try:
                self._connect(connection, self._left(deadline))
                self._refuse_strangers(connection)
                connection.settimeout(self._left(deadline))
                _send(connection, request)
                return _parse(self._receive(connection, deadline))
            except socket.timeout:  # the builtin's alias only from Python 3.10 on
                raise AgentUnreachable(f"{self.path}: no answer by the deadline") from None
            except OSError as fault:
                raise self._meaning(fault) from None

    def _connect(self, connection: socket.socket, seconds: float) -> None:
        """Connect within *seconds*, waiting in the kernel: a place that becomes free wakes who waits there.

        A socket with a timeout of Python's own would be told EAGAIN while the server's queue is full, and one
        user who connects without end keeps it full for everybody who only looks again now and then.
        """
        whole, rest = divmod(seconds, 1)
        connection.setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", int(whole), int(rest * 1e6) or 1)
        )
        connection.connect(self.path)

    def _left(self, deadline: float) -> float:
        """Seconds left; never 0, which would mean non-blocking."""
        return max(deadline - self._now(), 0.001)

    def _refuse_strangers(self, connection: socket.socket) -> None:
        """Whoever set $GPULEASE_SOCKET must not be able to play the agent to us."""
        found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII"))
        _, uid, _ = struct.unpack("iII", found)
        if uid == _NOBODY_YET:
            raise _Again("a signal came while it connected")
        if uid not in (0, os.geteuid()):
            raise ForeignServer(f"{self.path}: served by uid {uid}, which is neither root nor you")

    def _receive(self, connection: socket.socket, deadline: float) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            connection.settimeout(self._left(deadline))
            part = connection.recv(1 << 16)
            if not part:
                return b"".join(parts)
            parts.append(part)
            size += len(part)
            if size > MAX_HEAD_BYTES + MAX_ANSWER_BYTES:
                raise AgentUnreachable(f"{self.path}: the answer is larger than {MAX_ANSWER_BYTES} bytes")

    def _meaning(self, fault: OSError) -> Exception:
        why = fault.strerror or str(fault)
        if fault.errno in _COMING_BACK:
            return _Again(f"{why}: is the agent running?")
        if fault.errno in _BROKE_OFF:
            return _Again("the connection broke off before the answer")
        if fault.errno in (errno.EACCES, errno.EPERM):
            return NotAllowed({"detail": f"{self.path}: {why}: may you use this node's GPUs?"}, status=403)
        return AgentUnreachable(f"{self.path}: {why}")


def _send(connection: socket.socket, request: bytes) -> None:
    # A server may answer and close before it has read the whole body (413): the answer is still there.
    with suppress(BrokenPipeError):
        connection.sendall(request)


def _request(method: str, target: str, body: Optional[bytes]) -> bytes:
    head = [f"{method} {target} HTTP/1.1", "Host: localhost", "Accept: application/json", "Connection: close"]
    if body is not None:
        head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    elif method != "GET":
        head.append("Content-Length: 0")
    return "\r\n".join([*head, "", ""]).encode("ascii") + (body or b"")


def _parse(received: bytes) -> Answer:
    head, separator, body = received.partition(b"\r\n\r\n")
    if not separator:
        raise _Again("the connection broke off before the answer")
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
        raise AgentUnreachable("what answers there does not speak HTTP")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = _joined(body)
    length = headers.get("content-length", "")
    if length.isdigit() and len(body) != int(length):
        raise _Again("the connection broke off within the answer")
    return Answer(status=int(words[1]), headers=headers, body=body)


def _joined(chunked: bytes) -> bytes:
    """The body that was sent in chunks."""
    parts: list[bytes] = []
    while True:
        size, separator, chunked = chunked.partition(b"\r\n")
        try:
            length = int(size.split(b";")[0], 16)
        except ValueError:
            length = -1
        if not separator or length < 0 or len(chunked) < length:
            raise _Again("the connection broke off within the answer")
        if length == 0:
            return b"".join(parts)
        parts.append(chunked[:length])
        chunked = chunked[length + 2 :]
