"""The kernel's own lines of its log, from when it is opened; what programs write there is not heard.

Format as in Documentation/ABI/testing/dev-kmsg: ``<facility * 8 + level>,<number>,<µs>,<flags>;<text>``, and
lines of ``SUBSYSTEM=`` and ``DEVICE=`` below. Facility 0 is the kernel's: who writes there gets another.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path

from nodeagent.adapters.systemcalls import outside_fault

KMSG = Path("/dev/kmsg")
RECORD = 8192  # bytes; the kernel gives one record a read, and refuses a smaller buffer
MOST = 2000  # records of one look: a storm must not hold who looks
_HEAD = re.compile(rb"([0-9]{1,9}),[0-9]+,[0-9]+,[^;]*;")
_DEVICE = re.compile(rb"^ DEVICE=\+pci:([0-9a-f:.]{12,16})$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Line:
    """One line, and the PCI device that the kernel says it is about."""

    text: str
    device: str | None


@dataclass(frozen=True, slots=True)
class Read:
    """What one look found. *lost*: records were overwritten, or left for the next look and then some."""

    lines: tuple[Line, ...]
    lost: bool


class KernelLog:
    """Reads without ever waiting. Opened before a fork, it is read on where the other process ended."""

    def __init__(self, path: Path = KMSG) -> None:
        self._path = path
        self._file: int | None = None

    def open(self) -> None:
        """Begin with what comes now; again goes on with what it began with.

        Raises:
            OutsideFault: it cannot be read here.
        """
        if self._file is not None:
            return
        try:
            self._file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._file, 0, os.SEEK_END)
        except OSError as fault:
            raise outside_fault(self._path, fault) from None

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def read(self) -> Read:
        """What came since the last look, at most so much at once."""
        lines: list[Line] = []
        lost = False
        for _ in range(MOST if self._file is not None else 0):
            try:
                record = os.read(self._file or 0, RECORD)
            except BlockingIOError:
                break
            except OSError as fault:
                if fault.errno != errno.EPIPE:  # else: overwritten before it was read; the next is the oldest
                    break
                lost = True
                continue
            if not record:
                break
            if (line := line_of(record)) is not None:
                lines.append(line)
        return Read(tuple(lines), lost)


def line_of(record: bytes) -> Line | None:
    """The kernel's line in *record*; None where a program wrote it, or it is none."""
    head = _HEAD.match(record)
    if head is None or int(head[1]) >> 3:
        return None
    text, _, properties = record[head.end() :].partition(b"\n")
    device = _DEVICE.search(properties)
    return Line(text.decode("utf-8", "replace"), device[1].decode("ascii") if device else None)
