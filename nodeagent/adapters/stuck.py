"""Processes that do not die: what they are called, and where in the kernel they wait.

For administrators alone: it names processes of everybody.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nodeagent.adapters.processes import PROC, stat_of

_LONGEST = 2000  # characters of one text of the kernel's


@dataclass(frozen=True, slots=True)
class Stuck:
    """A process that is still there."""

    pid: int
    name: str
    state: str  # D: in a system call that no signal ends
    waits_in: str  # the kernel function that it sleeps in
    stack: tuple[str, ...]  # the kernel's, innermost first; none where it does not show it


def stuck(pids: Iterable[int], proc: Path = PROC) -> tuple[Stuck, ...]:
    """What *pids* are at; those that have ended are left out."""
    found = (_stuck(pid, proc) for pid in pids)
    return tuple(one for one in found if one is not None)


def name_of(pid: int, proc: Path = PROC) -> str:
    """What the process calls itself, which is a user's text; empty where it has ended."""
    return _text(proc / str(pid) / "comm")


def _stuck(pid: int, proc: Path) -> Stuck | None:
    stat, at = stat_of(pid, proc), proc / str(pid)
    if stat is None:
        return None
    return Stuck(
        pid, name_of(pid, proc), stat.state, _text(at / "wchan"), tuple(_text(at / "stack").split("\n"))
    )


def _text(path: Path) -> str:
    try:
        text = path.read_bytes()[:_LONGEST].decode("utf-8", "replace").strip()
    except OSError:
        return ""
    return "".join(one if one.isprintable() or one == "\n" else "?" for one in text)
