"""What `nodeagent bypass` does: a file of root's, and what it opens."""

from __future__ import annotations

import os
import syslog
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from gpulease.errors import GpuleaseError
from gpulease.screen import safe
from gpulease.sizes import parse_duration
from nodeagent import config as settings
from nodeagent.adapters.bypass_file import BypassFile
from nodeagent.adapters.clock import SystemClock
from nodeagent.cli.asking import ask
from nodeagent.domain.errors import InvalidField, NotAllowed
from nodeagent.domain.mode import Bypass, bypass_for
from nodeagent.wiring.opening import build_opening
from nodeagent.wiring.state import stem

NOTICED_SECONDS = 3.0  # an agent that is well looks every second
PAUSE_SECONDS = 0.1


def begin(
    config_path: Path | None, state_dir: Path | None, socket: Path | None, until: str, reason: str
) -> tuple[list[str], bool]:
    """Put it on record, wait for the agent to see it, open what is closed; lines, and whether all is open.

    Raises:
        NotAllowed, InvalidField, OutsideFault: nothing is bypassed.
    """
    _must_be_root()
    directory, clock = _directory(config_path, state_dir), SystemClock()
    bypass = bypass_for(_seconds(until), uid=_who(), reason=reason, clock=clock)
    BypassFile(stem(directory)).write(bypass)
    syslog.syslog(syslog.LOG_WARNING, f"nodeagent: bypass on by uid {bypass.uid}: {reason}")
    noticed = _noticed(socket or _socket(config_path), lambda told: _sees(told, bypass))
    # After that none of its looks closes anything any more. What it has opened by then is found open.
    done = build_opening(directory).open()
    agent = "the agent has seen it" if noticed else "no agent answers: opened from its records"
    lines = [_line(bypass, clock), agent, *(f"{name}: {said}" for name, said in done.items())]
    return [safe(line) for line in lines], not any(said.startswith("FAILED") for said in done.values())


def end(config_path: Path | None, state_dir: Path | None, socket: Path | None) -> str:
    """Take it off record, and wait for the agent to see that. Raises NotAllowed, OutsideFault."""
    _must_be_root()
    if not BypassFile(stem(_directory(config_path, state_dir))).remove():
        return "bypass: was off"
    syslog.syslog(syslog.LOG_WARNING, f"nodeagent: bypass off by uid {_who()}")
    noticed = _noticed(socket or _socket(config_path), lambda told: not told)
    return f"bypass: off; {'the agent enforces again within seconds' if noticed else 'no agent answers'}"


def state(config_path: Path | None, state_dir: Path | None, socket: Path | None) -> dict[str, Any]:
    """What is on record, and whether the agent has seen it (None: no bypass, or no agent answers).

    Raises:
        OutsideFault: the file is not believed.
    """
    clock = SystemClock()
    found = BypassFile(stem(_directory(config_path, state_dir))).read()
    if found is None or not found.holds(clock):
        return {"on": False, "until": None, "uid": None, "reason": None, "seen": None}
    told = next(_told(socket or _socket(config_path)), None)
    return {
        "on": True,
        "until": _until(found, clock).isoformat(timespec="seconds"),
        "uid": found.uid,
        "reason": found.reason,
        "seen": None if told is None else _sees(told, found),
    }


def state_line(state: Mapping[str, Any]) -> str:
    """The same for people."""
    if not state["on"]:
        return "bypass: off"
    seen = {True: "", False: "; the agent has not seen it yet", None: "; no agent answers"}[state["seen"]]
    until = datetime.fromisoformat(state["until"]).astimezone()
    return safe(f"bypass: on until {_time(until)}, by uid {state['uid']}: {state['reason']}{seen}")


def _line(bypass: Bypass, clock: SystemClock) -> str:
    return f"bypass: on until {_time(_until(bypass, clock))}, by uid {bypass.uid}: {bypass.reason}"


def _until(bypass: Bypass, clock: SystemClock) -> datetime:
    return datetime.fromtimestamp(clock.wall() + bypass.left_seconds(clock)).astimezone()


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S %Z}"


def _noticed(socket: Path, expected: Callable[[Mapping[str, Any]], bool]) -> bool:
    """Whether an agent says within seconds of a bypass what is *expected*."""
    return any(map(expected, _told(socket)))


def _sees(told: Mapping[str, Any], bypass: Bypass) -> bool:
    """Whether the agent has looked, and saw *bypass*."""
    return bool(told.get("seen")) and told.get("until_boottime_seconds") == bypass.until_s


def _told(socket: Path) -> Iterator[Mapping[str, Any]]:
    until = time.monotonic() + NOTICED_SECONDS
    while time.monotonic() < until:
        try:
            node = ask(socket, "GET", "/v1/node", timeout=1)
        except (GpuleaseError, ValueError):
            return
        yield node.get("bypass") or {}
        time.sleep(PAUSE_SECONDS)


def _must_be_root() -> None:
    if os.geteuid() != 0:
        raise NotAllowed("only root may bypass: without an agent nobody else can open what is closed")


def _who() -> int:
    """The user whom sudo, which root started, names; else the caller."""
    told = os.environ.get("SUDO_UID", "")
    return int(told) if told.isascii() and told.isdigit() and len(told) <= 10 else os.getuid()


def _seconds(text: str) -> int:
    try:
        return parse_duration(text)
    except ValueError as wrong:
        raise InvalidField("until", str(wrong)) from None


def _directory(config_path: Path | None, state_dir: Path | None) -> Path:
    return state_dir or settings.check(config_path or settings.DEFAULT_PATH)[0].state.directory


def _socket(config_path: Path | None) -> Path:
    return settings.check(config_path or settings.DEFAULT_PATH)[0].server.socket
