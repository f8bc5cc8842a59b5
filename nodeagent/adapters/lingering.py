"""What is left where a slice does not come free: processes that do not die, and who keeps memory shared.

Read when a slice is quarantined, for administrators alone: it names processes of everybody.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nodeagent.adapters.processes import PROC, every_pid, stat_of

MOST = 64  # entries of one list: evidence is to be read by a person
_LONGEST = 2000  # characters of one text of the kernel's
_DMA_BUF = re.compile(r"/dmabuf:.*")


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
    return tuple(one for one in found if one is not None)[:MOST]


def dma_buf_holders(proc: Path = PROC) -> tuple[int, ...]:
    """The pids that have a dma-buf open; it does not tell whose memory it is, and may be mapped alone."""
    return tuple(pid for pid in every_pid(proc) if _has_dma_buf(proc / str(pid)))


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


def _has_dma_buf(process: Path) -> bool:
    try:
        return any(_DMA_BUF.fullmatch(str(link.readlink())) for link in (process / "fd").iterdir())
    except OSError:
        return False  # it ended


def _text(path: Path) -> str:
    try:
        text = path.read_bytes()[:_LONGEST].decode("utf-8", "replace").strip()
    except OSError:
        return ""
    return "".join(one if one.isprintable() or one == "\n" else "?" for one in text)
