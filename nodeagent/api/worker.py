"""gunicorn's threaded worker, made fair: a thread is spent only on a whole request, and root has its own.

The stock worker lets 16 connections that send one byte each hold all threads, and its accept loop lingers up
to two seconds for every client that does not close. Here the accept loop reads requests itself, never
blocks, and ends each connection at its time.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import selectors
import signal
import socket
import sys
import time
from concurrent import futures
from functools import partial
from typing import Any

from gunicorn import http, util  # type: ignore[import-untyped]
from gunicorn.http import errors as wire  # type: ignore[import-untyped]
from gunicorn.workers.gthread import TConn, ThreadWorker  # type: ignore[import-untyped]

from nodeagent.api.admission import Admission, Classify, Lane, Limits
from nodeagent.api.incoming import Arrival, Incoming
from nodeagent.api.rawproblems import raw_problem

SO_SNDBUFFORCE = 32
# How long a thread computes on when another wants the interpreter. A call comes back for it dozens of times,
# so with Python's own 5 ms a few users' searches and scrapes would add up to seconds for root.
SWITCH_SECONDS = 0.0002
SEND_BUFFER = 1 << 20  # bytes: the largest answers fit, so that a client that does not read holds no thread
READ_SIZE = 1 << 16
WEB_THREADS = 3
LINGER_SECONDS = 1.0  # that a worker which is to end gives those who have connected and not asked yet

_REFUSALS = {
    Arrival.HEAD_TOO_LARGE: raw_problem(431, "TooLarge", "the request's head is too large"),
    Arrival.BAD_LENGTH: raw_problem(400, "MalformedBody", "Content-Length is no plain number"),
    Arrival.LENGTH_REQUIRED: raw_problem(411, "MalformedBody", "send a Content-Length, not chunks"),
}
_CROWDED = raw_problem(429, "TooMany", "too many connections at one time", retry_after=1)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Connection(TConn):  # type: ignore[misc]
    """An accepted connection: whose it is, what arrived of its request, and when it ends."""

    def __init__(self, cfg: Any, sock: socket.socket, peer: Any, server: Any, lane: Lane, end: float) -> None:
        super().__init__(cfg, sock, peer, server)
        self.lane = lane
        self.end = end  # monotonic seconds
        self.incoming = Incoming()

    def hand_over(self) -> None:
        """Give what arrived to gunicorn's parser, which then need not read on."""
        self.parser = http.get_parser(self.cfg, self.sock, self.client)
        self.parser.unreader.unread(bytes(self.incoming.data))
        self.data_ready = True


class FairWorker(ThreadWorker):  # type: ignore[misc]
    """One process. What it takes from the application object is what `AgentServer` notes there."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._up = mmap.mmap(-1, 1)  # shared with the arbiter, which made this object before the fork

    @property
    def up(self) -> bool:
        """Whether it has started and serves."""
        return self._up[0] == 1

    def init_process(self) -> None:
        limits: Limits = self.app.limits
        self._classify: Classify = self.app.classify
        self._admission = Admission(limits)
        self._open: set[Connection] = set()
        sys.setswitchinterval(SWITCH_SECONDS)
        self._reserved_pool = futures.ThreadPoolExecutor(self.app.reserved_threads, "administrators")
        self._web_pool = futures.ThreadPoolExecutor(WEB_THREADS, "web")
        if self.app.web_listener is not None:
            self.sockets.append(self.app.web_listener)
        super().init_process()

    def init_signals(self) -> None:
        super().init_signals()
        # To the arbiter alone. Not ignored: commands that are started from here would ignore it, too.
        signal.signal(signal.SIGHUP, lambda *_: None)
        signal.siginterrupt(signal.SIGHUP, False)

    def handle_exit(self, sig: int, frame: Any) -> None:
        super().handle_exit(sig, frame)
        self.method_queue.defer(self._leave)

    def _leave(self) -> None:
        """Keep nobody waiting who waits in the queue for the next worker."""
        self.app.leave()
        soon = time.monotonic() + LINGER_SECONDS
        for conn in self._open:
            if conn.parser is None:
                conn.end = min(conn.end, soon)

    def run(self) -> None:
        self._up[0] = 1
        super().run()
        self._reserved_pool.shutdown(wait=False)
        self._web_pool.shutdown(wait=False)

    def accept(self, listener: Any) -> None:
        try:
            sock, peer = listener.accept()
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ECONNABORTED, errno.EWOULDBLOCK, errno.EMFILE):
                raise
            return
        try:
            lane = self._classify(sock)
        except OSError:  # the peer is gone already
            sock.close()
            return
        if not self._admission.enter(lane):
            sock.setblocking(False)
            _say_and_close(sock, _CROWDED)
            return
        self._admit(sock, peer, listener.getsockname(), lane)

    def _admit(self, sock: socket.socket, peer: Any, server: Any, lane: Lane) -> None:
        _enlarge(sock)
        end = time.monotonic() + self._admission.life(lane)
        conn = Connection(self.cfg, sock, peer, server, lane, end)
        self.nr_conns += 1
        self._open.add(conn)
        self.poller.register(sock, selectors.EVENT_READ, partial(self._readable, conn))

    def _readable(self, conn: Connection, _sock: object) -> None:
        try:
            received = conn.sock.recv(READ_SIZE)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._drop(conn)
            return
        arrival = conn.incoming.add(received)
        if arrival is Arrival.PARTIAL:
            return
        if arrival is Arrival.EXPECTS:
            with contextlib.suppress(OSError):
                conn.sock.send(_CONTINUE)
        elif arrival is Arrival.WHOLE:
            self.poller.unregister(conn.sock)
            conn.hand_over()
            self.enqueue_req(conn)
        else:
            self._drop(conn, _REFUSALS[arrival])

    def enqueue_req(self, conn: Connection) -> None:
        work = self._pool(conn.lane).submit(self.handle, conn)
        work.add_done_callback(lambda done: self.method_queue.defer(self.finish_request, conn, done))

    def _pool(self, lane: Lane) -> futures.ThreadPoolExecutor:
        users: futures.ThreadPoolExecutor = self.tpool
        return self._reserved_pool if lane.reserved else self._web_pool if lane.web else users

    def handle(self, conn: Connection) -> bool:
        super().handle(conn)
        _end_politely(conn.sock)
        return False

    def finish_request(self, conn: Connection, fs: futures.Future[bool]) -> None:
        if not fs.cancelled() and fs.exception() is not None:
            self.log.error("a connection failed", exc_info=fs.exception())
        self._forget(conn)

    def murder_pending(self) -> None:
        """End what has lived too long; called by the loop at least once a second."""
        now = time.monotonic()
        for conn in [conn for conn in self._open if conn.end <= now]:
            if conn.parser is None:
                self._drop(conn)
                continue
            # Its thread has it: this wakes a blocked send, and the thread ends it.
            with contextlib.suppress(OSError):
                conn.sock.shutdown(socket.SHUT_RDWR)

    def handle_error(self, req: Any, client: socket.socket, addr: Any, exc: BaseException) -> None:
        """What the HTTP parser refuses is a problem document too, and never repeats the caller's bytes."""
        if not isinstance(exc, wire.ParseException):
            self.log.error("a request failed by a fault of the agent", exc_info=exc)
            answer = raw_problem(500, "InternalError", "this is a fault of the agent, not of the request")
        elif isinstance(exc, wire.LimitRequestLine):
            answer = raw_problem(414, "TooLarge", "the request line is too long")
        elif isinstance(exc, wire.LimitRequestHeaders):
            answer = raw_problem(431, "TooLarge", "the request's head is too large")
        else:
            answer = raw_problem(400, "MalformedBody", "this is not an HTTP/1.1 request")
        with contextlib.suppress(OSError):
            client.setblocking(False)
            client.send(answer)

    def _drop(self, conn: Connection, answer: bytes = b"") -> None:
        """End a connection that no thread has."""
        self.poller.unregister(conn.sock)
        if answer:
            _say_and_close(conn.sock, answer)
        self._forget(conn)

    def _forget(self, conn: Connection) -> None:
        self.nr_conns -= 1
        self._open.discard(conn)
        self._admission.leave(conn.lane)
        util.close(conn.sock)


def _enlarge(sock: socket.socket) -> None:
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, SEND_BUFFER)
    except OSError:  # not root: as far as net.core.wmem_max lets us
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)


def _say_and_close(sock: socket.socket, answer: bytes) -> None:
    with contextlib.suppress(OSError):
        sock.send(answer)
    _end_politely(sock)
    sock.close()


def _end_politely(sock: socket.socket) -> None:
    """Say that nothing more comes. Never waits for the other side, which may have no wish to close."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
