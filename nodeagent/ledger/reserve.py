"""Disk space kept back for releases: a file beside the database that is given up when the disk is full."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from nodeagent.domain.errors import LedgerUnavailable

RESERVE_BYTES = 8 << 20  # a release writes some 100 KiB to the log, and the log starts over after 1 MiB
ROOM_BYTES = 2 << 20


class Reserve:
    """No reserve, no grants: so what it gave up goes to releases alone, until the disk has room again."""

    def __init__(self, file: Path, *, size: int = RESERVE_BYTES, room: int = ROOM_BYTES) -> None:
        self._file = file
        self._size = size
        self._room = room

    def demand(self) -> None:
        """Have it in place, making it if need be.

        Raises:
            LedgerUnavailable: there is no room for it.
        """
        if self._stands():
            return
        try:
            if self._free() < self._size + self._room:
                raise LedgerUnavailable(
                    f"{self._file.parent}: the disk is full: no new leases until"
                    f" {(self._size + self._room) >> 20} MiB are free; releases work"
                )
            self._make()
        except OSError as error:
            self.spend()
            raise LedgerUnavailable(
                f"{self._file}: {error.strerror}: no new leases; releases work"
            ) from error

    def spend_if_needed(self) -> None:
        """Give it up where what is about to be written may not fit otherwise."""
        if self._free() < self._room:
            self.spend()

    def spend(self) -> None:
        with suppress(OSError):  # a read-only file system: the write that follows will say so
            self._file.unlink(missing_ok=True)

    def trouble(self) -> str | None:
        """Why `demand` would raise; writes nothing."""
        if self._stands() or self._free() >= self._size + self._room:
            return None
        return f"{self._file.parent}: the disk is full: no new leases; releases work"

    def _stands(self) -> bool:
        try:
            return self._file.stat().st_size >= self._size
        except OSError:
            return False

    def _free(self) -> int:
        """Free bytes; 0 where the file system does not say."""
        try:
            stats = os.statvfs(self._file.parent)
        except OSError:
            return 0
        return stats.f_bavail * stats.f_frsize

    def _make(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._file, flags, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, self._size)
        finally:
            os.close(descriptor)
