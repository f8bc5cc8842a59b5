"""A server whose queue somebody keeps full."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from gpulease.errors import AgentUnreachable
from gpulease.transport import Transport

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def test_a_full_queue_is_waited_in(tmp_path: Path) -> None:
    """A place that becomes free goes to who waits in the kernel, with no pause in which others take it."""
    path, slept = str(tmp_path / "s"), []
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as crowd:
        server.bind(path)
        server.listen(0)
        crowd.connect(path)
        answers = []
        client = threading.Thread(
            target=lambda: answers.append(Transport(path, timeout=30, sleep=slept.append).call("GET", "/"))
        )
        client.start()
        client.join(0.3)
        assert client.is_alive()
        server.accept()[0].close()
        connection, _ = server.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(ANSWER)
        client.join(30)
    assert [answer.status for answer in answers] == [200]
    assert not slept


def test_a_queue_that_stays_full_is_unreachable(tmp_path: Path) -> None:
    """The deadline holds while waiting for a place, too."""
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as crowd:
        server.bind(path)
        server.listen(0)
        crowd.connect(path)
        with pytest.raises(AgentUnreachable):
            Transport(path, timeout=0.3).call("GET", "/")
