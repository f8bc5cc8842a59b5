"""Directories in which others make directories: inotify(7), which Python has no binding for.

Events are hints: the kernel drops those that its queue has no room for, and says so.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

from nodeagent.adapters.systemcalls import inotify_add_watch, inotify_init1, outside_fault
from nodeagent.domain.errors import OutsideFault

# linux/inotify.h
IN_CREATE, IN_Q_OVERFLOW, IN_ONLYDIR = 0x100, 0x4000, 0x0100_0000
_EVENT = struct.Struct("=iIII")  # watch, mask, cookie, and how many bytes of a name follow, NULs included
AT_ONCE = 64 << 10


@dataclass(frozen=True, slots=True)
class Made:
    """What one reading gave: the names that were made, in whichever directory."""

    names: frozenset[str] = frozenset()
    lost: bool = False  # there were more, which nobody will ever read


class Inotify:
    """One queue of events. Who opens it must not fork before it is closed."""

    def __init__(self) -> None:
        self._descriptor: int | None = None

    def open(self) -> int:
        """The descriptor, to be polled; it stays this object's. Raises OutsideFault."""
        try:
            self._descriptor = inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as fault:
            raise outside_fault("inotify", fault, EMFILE="fs.inotify.max_user_instances") from fault
        return self._descriptor

    def close(self) -> None:
        """Again is harmless."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def watch(self, directory: int, path: str) -> None:
        """Hear of what is made in the descriptor *directory*, which faults call *path*; again is harmless.

        The watch ends with the directory. Raises OutsideFault.
        """
        if self._descriptor is None:
            return
        try:
            inotify_add_watch(self._descriptor, f"/proc/self/fd/{directory}", IN_CREATE | IN_ONLYDIR)
        except OSError as fault:
            raise outside_fault(path, fault, ENOSPC="fs.inotify.max_user_watches") from fault

    def read(self) -> Made:
        """What has come, without waiting. Raises OutsideFault where nothing ever will again."""
        if self._descriptor is None:
            raise OutsideFault("inotify", "is closed")
        try:
            read = os.read(self._descriptor, AT_ONCE)
        except BlockingIOError:
            return Made()
        except OSError as fault:
            raise outside_fault("inotify", fault) from fault
        return _made(read)


def _made(read: bytes) -> Made:
    names, lost, at = set(), False, 0
    while at < len(read):
        _, mask, _, length = _EVENT.unpack_from(read, at)
        at += _EVENT.size
        if mask & IN_CREATE:
            names.add(os.fsdecode(read[at : at + length].rstrip(b"\0")))
        lost = lost or bool(mask & IN_Q_OVERFLOW)
        at += length
    return Made(frozenset(names), lost)
