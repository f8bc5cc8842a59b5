"""Hearing the kernel, and nobody who speaks in its name."""

from __future__ import annotations

import multiprocessing
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.adapters import uevents
from nodeagent.adapters.uevents import Heard, UeventSocket, from_kernel, parse
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.uevents import Uevent

DEVICE = Path("/sys/class/mem/null/uevent")
PATH = "/devices/virtual/mem/null"
FORGED = "/devices/pci0000:c0/0000:c1:00.0/drm/card1"
MESSAGE = b"\0".join(
    (
        f"change@{FORGED}".encode(),
        b"ACTION=change",
        b"SUBSYSTEM=drm",
        b"WEDGED=none",
        b"DEVPATH=" + FORGED.encode(),
        b"",
    )
)
UNREADABLE = b"change@\xff\0DEVPATH=/x\0"


@pytest.fixture
def heard() -> Iterator[UeventSocket]:
    """An open socket on the kernel's group."""
    made = UeventSocket()
    try:
        made.open()
    except OutsideFault as fault:
        pytest.skip(str(fault))
    yield made
    made.close()


def announce(environment: str = "") -> None:
    """Let the kernel announce a change of a device that nobody minds."""
    try:
        DEVICE.write_text(f"change{environment}")
    except OSError as fault:
        pytest.skip(f"{DEVICE}: {fault.strerror}: the kernel announces nothing for us here")


def all_of(source: UeventSocket) -> list[Uevent]:
    """What was heard up to an announcement of our own: delivery is in order, and done when it returns."""
    announce()
    found: list[Uevent] = []
    while True:
        events = source.read().events
        found += events
        if any(event.devpath == PATH for event in events) or not events:
            return found


@pytest.mark.root
def test_what_comes_while_nobody_reads_waits_for_the_next_process(heard: UeventSocket) -> None:
    """A worker opens the socket that its arbiter opened, and closes its own end of it alone."""
    child = os.fork()
    if child == 0:
        descriptor = heard.open()
        heard.close()
        os._exit(descriptor)
    announce()
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended == heard.open()
    assert any(event.devpath == PATH for event in heard.read().events)


@pytest.mark.root
def test_the_kernel_is_heard(heard: UeventSocket) -> None:
    """A real announcement of a real device, without waiting; then there is none."""
    assert Uevent("change", "mem", PATH) in all_of(heard)
    assert heard.read().lost is False


@pytest.mark.root
def test_what_root_adds_by_hand_is_no_reset(heard: UeventSocket) -> None:
    """The kernel marks a synthetic event's values (SYNTH_ARG_), so that it never reads as a driver's."""
    announce(" 11111111-2222-3333-4444-555555555555 WEDGED=none")
    assert {event.wedged for event in all_of(heard)} == {None}


@pytest.mark.root
@pytest.mark.parametrize("to", ["kernel group", "udev group", "socket", "kernel"])
def test_the_forged_word_of_root_is_not_believed(heard: UeventSocket, to: str) -> None:
    """Root of a container in the host's network can send to both groups, to the socket, and by the kernel."""
    own = heard._socket.getsockname()[0]
    address = {"kernel group": (0, 1), "udev group": (0, 2), "socket": (own, 0), "kernel": (0, 0)}[to]
    # The kernel takes a message with a header, strips it, and sends the rest on from its own port.
    header = struct.pack("=IHHII", 16 + len(MESSAGE), 16, 1, 1, 0) if to == "kernel" else b""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, uevents.NETLINK_KOBJECT_UEVENT) as forger:
        forger.sendto(header + MESSAGE, address)
    found = all_of(heard)
    assert found
    assert FORGED not in {event.devpath for event in found}


@pytest.mark.root
def test_a_user_cannot_even_send(heard: UeventSocket) -> None:
    """Neither to a group nor to the socket."""
    own = heard._socket.getsockname()[0]

    def forge(results) -> None:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        for address in ((0, 1), (0, 2), (own, 0)):
            with socket.socket(
                socket.AF_NETLINK, socket.SOCK_DGRAM, uevents.NETLINK_KOBJECT_UEVENT
            ) as forger:
                try:
                    forger.sendto(MESSAGE, address)
                    results.put("sent")
                except OSError as fault:
                    results.put(type(fault).__name__)

    fork = multiprocessing.get_context("fork")
    results = fork.SimpleQueue()
    child = fork.Process(target=forge, args=(results,))
    child.start()
    child.join()
    assert [results.get() for _ in range(3)] == ["PermissionError", "PermissionError", "PermissionError"]
    assert FORGED not in {event.devpath for event in all_of(heard)}


def test_who_is_the_kernel() -> None:
    """Port 0, its group, and nobody's pid: all three."""
    assert from_kernel((0, 1), 0)
    for sender, pid in (((7, 1), 0), ((0, 2), 0), ((0, 0), 0), ((0, 1), 7), ((0, 1), None)):
        assert not from_kernel(sender, pid)


@pytest.mark.root
def test_an_overflow_is_told_and_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who read too late learns it, and hears what comes afterwards."""
    monkeypatch.setattr(uevents, "BUFFER_BYTES", 4096)
    source = UeventSocket()
    source.open()
    try:
        for _ in range(200):
            announce()
        lost = False
        while (heard := source.read()) != Heard():
            lost = lost or heard.lost
        assert lost
        assert Uevent("change", "mem", PATH) in all_of(source)
    finally:
        source.close()


@pytest.mark.parametrize("data", [b"libudev\0", UNREADABLE])
def test_what_cannot_be_read_is_no_event(data: bytes) -> None:
    """A message that is cut or is no text: the reader counts it as lost."""
    assert parse(data) is None


def test_a_closed_socket_says_so() -> None:
    """Reading it is a fault, closing it again is none."""
    source = UeventSocket()
    source.close()
    with pytest.raises(OutsideFault, match="closed"):
        source.read()


@pytest.mark.root
@pytest.mark.userns
def test_a_network_that_is_told_nothing_says_so() -> None:
    """In a network namespace of a user namespace nothing ever comes: no socket that is silent for ever."""
    program = "from nodeagent.adapters.uevents import UeventSocket\nUeventSocket().open()"
    ran = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--net", sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode
    assert "belongs to a user namespace" in ran.stderr
