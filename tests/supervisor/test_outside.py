"""Commands and mounts of an agent in a sandbox: made by who systemd starts, for this node's root only."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.adapters.launcher import Outside
from nodeagent.adapters.supervisor import Supervisor
from nodeagent.domain.errors import OutsideFault

from .conftest import Lab
from .test_launch import ALLOC

pytestmark = [pytest.mark.cgroup2, pytest.mark.root]


# What is mounted there is seen by nobody else: a door that fails a test must not cost this machine its /etc.
APART = ("unshare", "--mount", "--propagation=private")


@pytest.fixture
def door(built: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """As nodeagent-outside.socket: a process for each connection, its stdin; *param*: what starts it."""
    path = tmp_path / "socket"
    words = (*getattr(request, "param", ()), str(built / "gpulease-supervisor"), "outside")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                subprocess.run(words, stdin=connection, check=False)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield path
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


@pytest.fixture
def outside(lab: Lab, built: Path, door: Path) -> Lab:
    """The lab, with its commands started by that door."""
    lab.supervisor = Supervisor(
        built / "gpulease-supervisor",
        kfd=lab.fake.kfd,
        kfd_processes=lab.fake.proc,
        dri=lab.fake.directory / "dri",
        launcher=Outside(door),
    )
    return lab


def test_a_command_is_started_by_the_door(outside: Lab, programs) -> None:
    """It is supervised as ever: what fits is allocated, what does not is refused, and its end is told."""
    assert outside.supervisor.unavailable() is None
    lines, status = outside.gpu(programs("dynamic"), *[f"raw:{ALLOC}:{600 << 20}"] * 2).end()
    assert lines == ["raw=0", f"raw={errno.ENOMEM}"]
    assert status == 0


def test_descriptors_keep_their_numbers(outside: Lab) -> None:
    """Whatever numbers they have in the agent, low or far apart."""
    high = [os.dup(0) for _ in range(60)]
    try:
        running = outside.start("/bin/sh", "-c", "echo $(id -u); ls /proc/self/fd")
        lines, status = running.end()
    finally:
        for descriptor in high:
            os.close(descriptor)
    assert status == 0
    assert lines[0] == "54321"
    assert {int(line) for line in lines[1:]} <= {0, 1, 2, 3}


@pytest.mark.parametrize("door", [APART], ids=["apart"], indirect=True)
@pytest.mark.parametrize("where", ["/etc", "/run/nodeagent/../../etc", "/run/other"])
def test_nothing_is_mounted_but_below_the_agents_own(door: Path, where: str) -> None:
    """A message from a confused agent hides no directory of the node's."""
    with pytest.raises(PermissionError):
        Outside(door).mount("size=1m", [Path(where)])
    with pytest.raises(PermissionError):
        Outside(door).unmount([Path(where)])


def test_what_fails_there_is_told(door: Path) -> None:
    """With its errno and path, as a mount of our own would."""
    with pytest.raises(FileNotFoundError, match="/run/nodeagent/none"):
        Outside(door).mount("size=1m", [Path("/run/nodeagent/none/such")])


@pytest.mark.parametrize("inside", [("--pid", "--fork"), ("--user", "--map-root-user")], ids=["pid", "user"])
def test_a_containers_root_is_not_heard(door: Path, inside: tuple[str, ...]) -> None:
    """Who has the socket and uid 0 in namespaces of its own is answered nothing."""
    ask = f"""
import socket
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as made:
    made.connect({str(door)!r})
    made.send(b"probe\\0-\\0")
    print(made.recv(100))
"""
    program = [sys.executable, "-c", ask]
    told = subprocess.run(["unshare", *inside, *program], capture_output=True, text=True, check=False)
    assert told.stdout.strip() in ("", "b''")  # the connection ended: before its message came, or after


def test_without_a_door_nothing_is_started(lab: Lab, built: Path, tmp_path: Path) -> None:
    """Not here instead, which would be in the sandbox: the fault names the socket's unit."""
    lab.supervisor = Supervisor(built / "gpulease-supervisor", launcher=Outside(tmp_path / "none"))
    with pytest.raises(OutsideFault, match=r"nodeagent-outside\.socket"):
        lab.start("/bin/true")
    assert "nodeagent-outside.socket" in str(lab.supervisor.no_private_ipc())
