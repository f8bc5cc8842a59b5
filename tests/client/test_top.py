"""``gpulease top`` and what is told while something is waited for, on a terminal of the tests' own."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

OURS = re.compile(r"\x1b\[(?:\d+m|H|K|J|\?(?:1049|25|7)[hl])")
HOSTILE = "\x1b[2J\x1b]0;owned\x07<b>\u202egnp\x9b31m"
SHOWN = "\\x1b[2J\\x1b]0;owned\\x07<b>\\u202egnp\\x9b31m"
SECONDS = 30


@dataclass
class Window:
    """A terminal that somebody sees: what was written to it, and its keys."""

    ours: int
    theirs: int
    text: str = ""
    process: Any = field(default=None)

    def until(self, found: Callable[[str], Any]) -> None:
        """Wait until what was written so far fits."""
        deadline = time.monotonic() + SECONDS
        while not found(self.text):
            assert time.monotonic() < deadline, self.text
            self._read(0.1)

    def end(self) -> int:
        """Wait for the program's end; its exit code."""
        deadline = time.monotonic() + SECONDS
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.text
            self._read(0.05)
        while self._read(0):
            pass
        return int(self.process.returncode)

    def key(self, text: str) -> None:
        os.write(self.ours, text.encode())

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if self.process is not None:
            self.process.send_signal(signal.SIGWINCH)

    def _read(self, seconds: float) -> bool:
        if not select.select([self.ours], [], [], seconds)[0]:
            return False
        self.text += os.read(self.ours, 1 << 16).decode()
        return True


@pytest.fixture
def window(gpulease: Any) -> Iterator[Callable[..., Window]]:
    """Start a command on a terminal of 30 lines and 100 columns."""
    opened: list[Window] = []

    def start(*words: str, **options: Any) -> Window:
        made = Window(*pty.openpty())
        opened.append(made)
        made.resize(30, 100)
        streams = {"stdin": made.theirs, "stdout": made.theirs, "stderr": made.theirs, **options}
        environment = {"TERM": "xterm", "COLUMNS": ""}
        made.process = gpulease.start(*words, env=environment, **streams)
        return made

    yield start
    for one in opened:
        os.close(one.ours)
        os.close(one.theirs)


def test_it_is_live_until_q(agent: Any, window: Any) -> None:
    """A lease shows once it is there; q gives the terminal back as it was."""
    top = window("top", "--interval", "1")
    before = termios.tcgetattr(top.theirs)
    top.until(lambda text: "0000:c1:00.0/0" in text)
    lease = agent.add_lease()
    top.until(lambda text: str(lease["id"]) in text)
    top.key("x")
    top.key("q")
    assert top.end() == 0
    assert top.text.startswith("\x1b[?1049h") and top.text.rstrip().endswith("\x1b[?1049l")
    assert termios.tcgetattr(top.theirs) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_gives_the_terminal_back_too(window: Any, number: int) -> None:
    """Whatever ends it, the cursor and the keys are as they were."""
    top = window("top")
    before = termios.tcgetattr(top.theirs)
    top.until(lambda text: "0000:c1:00.0/0" in text)
    top.process.send_signal(number)
    assert top.end() == 128 + number
    assert top.text.rstrip().endswith("\x1b[?1049l")
    assert termios.tcgetattr(top.theirs) == before


def test_the_picture_is_as_large_as_the_window(agent: Any, window: Any) -> None:
    """No more lines than there are, and anew at once when the window changes."""
    for _ in range(40):
        agent.add_lease()
    top = window("top", "--interval", "1h")
    top.until(lambda text: "1001" in text)
    at = len(top.text)
    top.resize(12, 60)
    top.until(lambda text: "0000:c1:00.0/0" in text[at:])
    top.key("q")
    top.end()
    frames = top.text.split("\x1b[H")[1:]
    assert [len(frame.split("\r\n")) for frame in (frames[0], frames[-1].split("\x1b[?7h")[0])] == [30, 12]


def test_an_agent_that_is_away_is_said(agent: Any, window: Any) -> None:
    """The last picture stays, and is called old."""
    top = window("top", "--interval", "1", "--timeout", "1s")
    top.until(lambda text: "0000:c1:00.0/0" in text)
    agent.canned += [(503, {"code": "NodeUnhealthy", "detail": "the ledger is full"}, {})] * 20
    top.until(lambda text: "what is shown is old" in text and "the ledger is full" in text)
    top.key("q")
    assert top.end() == 0


@pytest.mark.parametrize("words", [("top",), ("top", "--once")])
def test_a_pipe_gets_one_picture(agent: Any, gpulease: Any, words: tuple[str, ...]) -> None:
    """As status, with the last events, and nothing for terminals."""
    agent.add_lease()
    agent.events += [{"id": 1, "kind": "granted", "lease": 1001, "at": "2031-05-04T10:00:00Z"}]
    done = gpulease(*words)
    assert (done.returncode, "\x1b" in done.stdout) == (0, False)
    assert "1001" in done.stdout and "granted" in done.stdout.splitlines()[-1]


def test_an_agent_of_before_has_no_newest_events(agent: Any, gpulease: Any) -> None:
    """It refuses the parameter; the rest is shown."""
    answers = {
        "/v1/devices": {"devices": agent.devices, "next": None},
        "leases": {"leases": [], "next": None},
    }
    agent.canned += [
        (200, answers["/v1/devices"], {}),
        (200, answers["leases"], {}),
        (200, {"name": "gpu01", "ready": True}, {}),
        (422, {"code": "InvalidField", "field": "newest", "detail": "there is no such query parameter"}, {}),
    ]
    done = gpulease("top", "--once")
    assert done.returncode == 0 and "gpu01" in done.stdout


@pytest.mark.parametrize(
    "command",
    [
        *(("top",), ("top", "--once"), ("top", "--json"), ("status",), ("devices",), ("devices", "--json")),
        *(("numbering",), ("show", "1001"), ("show", "1001", "--json"), ("events",), ("events", "--json")),
        *(("env", "1001"), ("renew", "1001"), ("release", "1001"), ("show", "1"), ("release", "mine")),
    ],
    ids=" ".join,
)
def test_no_text_of_others_commands_the_terminal(agent: Any, window: Any, command: tuple[str, ...]) -> None:
    """In frames, boxes and lines alike: what is hostile is written out; only our own sequences are sent."""
    environment = {"GPULEASE_ID": HOSTILE, HOSTILE: HOSTILE}
    holder = {"kind": HOSTILE, "id": HOSTILE, "uid": os.getuid()}
    agent.add_lease(holder=holder, reason=HOSTILE, cgroup=HOSTILE, environment=environment)
    agent.leases[1] = {**agent.leases[1001], "id": 1, "state": HOSTILE, "slices": [{"device": HOSTILE}]}
    agent.devices[0].update(product=HOSTILE, reason=HOSTILE, uuid=HOSTILE, gfx=HOSTILE, state="unhealthy")
    agent.events += [{"id": 1, "kind": HOSTILE, "reason": HOSTILE, "device": HOSTILE}]
    seen = window(*command)
    if command == ("top",):
        seen.until(lambda text: SHOWN[:20] in text)
        seen.key("q")
    seen.end()
    assert "1b[2J" in seen.text or "control characters" in seen.text  # env refuses
    left = OURS.sub("", seen.text)
    assert not [one for one in left if not one.isprintable() and one not in "\r\n"]


def test_waiting_and_releasing_are_told_while_they_last(agent: Any, window: Any) -> None:
    """One line, which is wiped out; stdout has none of it."""
    agent.grant_state = "queued"
    reading, writing = os.pipe()
    grant = window("grant", "--cu", "25%", "--wait", "1m", stdout=writing)
    os.close(writing)
    assert grant.end() == 0
    with os.fdopen(reading) as out:
        assert "waits" not in out.read()
    assert "\r\x1b[Kgpulease: lease 1001 waits in the queue, 0 s\r\x1b[K" in grant.text


def test_the_place_in_the_queue_is_told(agent: Any, window: Any) -> None:
    """Whose turn it is, and since when at the earliest."""
    agent.grant_state = "queued"
    agent.grant_queue = {"position": 1, "earliest_at": "2031-05-04T10:00:00.000Z", "gives_up_at": None}
    grant = window("grant", "--cu", "25%", "--wait", "1m")
    assert grant.end() == 0
    assert "waits in the queue, 0 s: next, not before 2031-05-04T10" in grant.text


def test_what_is_told_commands_no_terminal(agent: Any, window: Any) -> None:
    """A reason that others wrote is escaped there, too."""
    agent.grant_state, agent.grant_reason = "queued", HOSTILE
    grant = window("grant", "--cu", "25%", "--wait", "1m")
    assert grant.end() == 0
    assert SHOWN in grant.text
    assert not [one for one in OURS.sub("", grant.text) if not one.isprintable() and one not in "\r\n"]


def test_a_pipe_is_told_nothing_of_waiting(agent: Any, gpulease: Any) -> None:
    """A log has the outcome only."""
    agent.grant_state = "queued"
    done = gpulease("grant", "--cu", "25%", "--wait", "1m")
    assert (done.returncode, "waits" in done.stderr) == (0, False)
