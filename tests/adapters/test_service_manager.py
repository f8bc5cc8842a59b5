"""What is told to systemd: by datagram, with its variables taken out of the environment."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.adapters.service_manager import ServiceManager, take_service_manager


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[socket.socket]:
    """The service manager's end, at tmp_path/notify."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(tmp_path / "notify"))
        made.settimeout(5)
        yield made


def test_lines_arrive_as_one_message(listening: socket.socket, tmp_path: Path) -> None:
    """sd_notify(3): newline-separated assignments in a datagram."""
    assert ServiceManager(str(tmp_path / "notify")).tell("READY=1", "STATUS=granting")
    assert listening.recv(1000) == b"READY=1\nSTATUS=granting"


def test_an_abstract_address_is_understood() -> None:
    """`@name` is a socket without a file."""
    name = f"nodeagent-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(f"\0{name}")
        manager = take_service_manager({"NOTIFY_SOCKET": f"@{name}"})
        assert manager is not None
        assert manager.tell("WATCHDOG=1")
        assert made.recv(100) == b"WATCHDOG=1"


def test_a_manager_that_is_gone_or_busy_stops_nobody(listening: socket.socket, tmp_path: Path) -> None:
    """What cannot be sent at once is dropped, and said so."""
    assert not ServiceManager(str(tmp_path / "none")).tell("WATCHDOG=1")
    manager = ServiceManager(str(tmp_path / "notify"))
    sent = [manager.tell("WATCHDOG=1") for _ in range(5000)]
    assert sent[0]
    assert not sent[-1]


def test_its_variables_are_taken_away() -> None:
    """gunicorn, and what the agent starts, must not speak for it."""
    environment = {
        "NOTIFY_SOCKET": "/run/systemd/notify",
        "WATCHDOG_USEC": "180000000",
        "WATCHDOG_PID": str(os.getpid()),
        "HOME": "/root",
    }
    assert take_service_manager(environment) == ServiceManager("/run/systemd/notify", 180.0)
    assert environment == {"HOME": "/root"}


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, None),
        ({"NOTIFY_SOCKET": "vsock:2:9999"}, None),
        ({"NOTIFY_SOCKET": "relative"}, None),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "soon"}, ServiceManager("/n")),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "0"}, ServiceManager("/n")),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}, ServiceManager("/n")),
    ],
)
def test_what_is_not_for_us_is_left_out(told: dict[str, str], expected: ServiceManager | None) -> None:
    """No socket that we can write to: no manager; a watchdog of another process: none of ours."""
    assert take_service_manager(told) == expected
