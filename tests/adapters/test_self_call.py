"""The agent's question to itself: it never waits, and takes nothing for an answer that is none."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.adapters.self_call import Answer, SelfCall

REFUSED = b'HTTP/1.1 503 X\r\nServer: x\r\n\r\n{"code": "Unhealthy", "detail": "the disk is full"}'


@pytest.fixture
def api(tmp_path: Path) -> Iterator[socket.socket]:
    """The listening end, at tmp_path/api.sock."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        made.bind(str(tmp_path / "api.sock"))
        made.listen(8)
        made.settimeout(5)
        yield made


def answer(api: socket.socket, raw: bytes) -> bytes:
    """Answer the next connection with *raw*; what it asked."""
    connection, _ = api.accept()
    with connection:
        asked = connection.recv(4096)
        connection.sendall(raw)
    return asked


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n{}", Answer(None)),
        (REFUSED, Answer("the disk is full")),
        (b"HTTP/1.1 500 X\r\n\r\n<html>", Answer("/readyz answers 500")),
        (b"HTTP/1.1 503 X\r\n\r\n[]", Answer("/readyz answers 503")),
        (b"", None),
        (b"nonsense", None),
    ],
)
def test_what_was_answered(api: socket.socket, tmp_path: Path, raw: bytes, expected: Answer | None) -> None:
    """200 is readiness, any other answer has its reason, and a connection that just ends is no answer."""
    call = SelfCall(tmp_path / "api.sock")
    assert call.poll() is None
    assert answer(api, raw).startswith(b"GET /readyz HTTP/1.1\r\n")
    assert call.poll() == expected
    call.close()


def test_nothing_is_waited_for(api: socket.socket, tmp_path: Path) -> None:
    """Who is not answered asks once, looks again, and asks anew when it has given up."""
    now = [0.0]
    call = SelfCall(tmp_path / "api.sock", lambda: now[0])
    assert [call.poll() for _ in range(3)] == [None] * 3
    first, _ = api.accept()
    now[0] = 30.0
    assert call.poll() is None  # gives up
    assert call.poll() is None
    second, _ = api.accept()
    for connection in (first, second):
        connection.close()
    call.close()


def test_nobody_listening_is_no_answer(tmp_path: Path) -> None:
    """Neither without a socket nor where nobody serves it."""
    call = SelfCall(tmp_path / "none")
    assert [call.poll(), call.poll()] == [None, None]
