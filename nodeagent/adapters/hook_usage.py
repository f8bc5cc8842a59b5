"""One lease's usage file: made for its holder, kept in shape, read with suspicion (threats 11 to 13).

The holder owns it and may write, cut, lengthen or close it to others; its directory is root's, so nobody
else puts another in its place. Root neither follows, waits for nor maps what lies there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nodeagent.adapters.hook_format import (
    USAGE_HEAD,
    denied_count,
    slot_lock,
    usage_bytes,
    usage_size,
    used_bytes,
    used_slots,
)
from nodeagent.domain.errors import OutsideFault

HOLDERS, CONTAINERS = 0o600, 0o666  # whose to write: the latter's directory lets nobody in
_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FLOCK = "hhqqi4x"  # struct flock of 64-bit Linux


def fresh(name: str) -> str:
    """What the file *name* is called while it is made; a crash may leave it so."""
    return f"{name}.new"


@dataclass(frozen=True, slots=True)
class Usage:
    """What a lease's processes told of themselves: bytes by device, in the limits' order, and refusals."""

    used_bytes: tuple[int, ...]
    denied: int


@dataclass(frozen=True, slots=True)
class UsageFile:
    """The usage file at *path*, of *devices* devices, *uid*'s, of *mode*. All raise OSError with the path."""

    path: Path
    lease: int
    uid: int
    devices: int
    mode: int = HOLDERS

    def keep(self) -> None:
        """Make it, or put it right: size, header, owner and mode. What is charged in it stays charged.

        Bytes that its holder cut off count as 0 until the processes concerned allocate again, and so does a
        file that had to be made anew: those that are there already are not seen as living in it.
        """
        try:
            regular = stat.S_ISREG(self.path.lstat().st_mode)
        except FileNotFoundError:
            regular = False
        if regular:
            self._mend()
        else:
            self._make()

    def check(self) -> None:
        """Raise OutsideFault where it is not as `keep` leaves it."""
        with self._opened(os.O_RDONLY) as (descriptor, status):
            if wrong := self._wrong(descriptor, status):
                raise OutsideFault(self.path, f"{wrong}: its holder changed it")

    def read(self) -> Usage:
        """What the living say; what dead processes left is not counted. The holder may write anything."""
        with self._opened(os.O_RDONLY) as (descriptor, status):
            if status.st_size < usage_size(self.devices):
                raise OutsideFault(self.path, "is too short: its holder changed it")
            content = os.pread(descriptor, usage_size(self.devices), 0)
            living = [slot for slot in used_slots(content, self.devices) if _is_locked(descriptor, slot)]
        used = tuple(used_bytes(content, index, living) for index in range(self.devices))
        return Usage(used, denied_count(content))

    def _wrong(self, descriptor: int, status: os.stat_result) -> str | None:
        if status.st_size != usage_size(self.devices):
            return f"has {status.st_size} bytes, not {usage_size(self.devices)}"
        if status.st_uid != self.uid or stat.S_IMODE(status.st_mode) != self.mode:
            return f"is of uid {status.st_uid} and mode {stat.S_IMODE(status.st_mode):o}"
        head = self._empty()[:USAGE_HEAD]
        return None if os.pread(descriptor, USAGE_HEAD, 0) == head else "has another header"

    def _make(self) -> None:
        """Under another name first, so that no program sees a part of it."""
        new = self.path.with_name(fresh(self.path.name))
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, HOLDERS)
        try:
            os.posix_fallocate(descriptor, 0, usage_size(self.devices))  # so that charging never lacks space
            os.pwrite(descriptor, self._empty(), 0)
            self._give(descriptor)
            new.rename(self.path)
        except OSError:
            new.unlink()
            raise
        finally:
            os.close(descriptor)

    def _mend(self) -> None:
        with self._opened(os.O_RDWR) as (descriptor, status):
            if self._wrong(descriptor, status) is None:
                return
            os.ftruncate(descriptor, usage_size(self.devices))
            os.posix_fallocate(descriptor, 0, usage_size(self.devices))
            os.pwrite(descriptor, self._empty()[:USAGE_HEAD], 0)
            self._give(descriptor)

    def _give(self, descriptor: int) -> None:
        os.fchown(descriptor, self.uid, -1)
        os.fchmod(descriptor, self.mode)  # whatever the umask

    def _empty(self) -> bytes:
        return usage_bytes(self.lease, self.devices)

    @contextlib.contextmanager
    def _opened(self, flags: int) -> Iterator[tuple[int, os.stat_result]]:
        """The file itself: no link, no pipe that would make us wait."""
        descriptor = os.open(self.path, flags | _OPEN)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OutsideFault(self.path, "is no regular file")
            yield descriptor, status
        finally:
            os.close(descriptor)


def _is_locked(descriptor: int, slot: int) -> bool:
    """Whether the process of *slot* lives: it holds the slot's byte as long as it has its memory."""
    lock = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, slot_lock(slot), 1, 0)
    kind: int = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, lock))[0]
    return kind != int(fcntl.F_UNLCK)
