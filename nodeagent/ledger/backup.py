"""Copies of a ledger in use. VACUUM INTO: a stepwise copy starts over at every write and may never end."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

from nodeagent.domain.errors import OutsideFault
from nodeagent.ledger.checks import problems
from nodeagent.ledger.engine import connect
from nodeagent.ledger.faults import translated
from nodeagent.ledger.files import others_may_write, sync_directory


def backup(path: Path, target: Path) -> None:
    """Copy the ledger at *path* to *target*, a new file of mode 0600, checked and synced.

    Raises:
        OutsideFault: *target* exists, or stands where others could swap it.
        LedgerUnavailable: the ledger cannot be read, or the copy not be written.
    """
    _refuse_shared_directory(target.parent)
    # Whole before it has its name: what a death leaves half made must not look like a backup.
    partial = target.with_name(f".{target.name}.part")
    descriptor = _make(target, partial)
    try:
        with translated(path):
            _copy(path, partial)
        os.fsync(descriptor)
        if not os.path.samestat(os.fstat(descriptor), partial.lstat()):
            raise OutsideFault(target, "another backup is being made there; wait for that")
        partial.rename(target)
        sync_directory(target.parent)
    except BaseException:
        _clear(partial)
        raise
    finally:
        os.close(descriptor)


def _make(target: Path, partial: Path) -> int:
    """A descriptor of the new file *partial*, made first: SQLite would leave it readable for everyone."""
    if os.path.lexists(target):
        raise OutsideFault(target, "exists already; a backup overwrites nothing: name a new file")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        _clear(partial)
        return os.open(partial, flags, 0o600)
    except OSError as error:
        raise OutsideFault(target, f"{error.strerror}; the backup was not made") from None


def _clear(partial: Path) -> None:
    """Take away what an earlier try left: SQLite's journal of it, too."""
    for left in (partial, partial.with_name(f"{partial.name}-journal")):
        left.unlink(missing_ok=True)


def _copy(path: Path, target: Path) -> None:
    with closing(connect(path, read_only=True)) as source:
        source.execute("PRAGMA query_only=OFF")  # SQLite counts the copy as a write; the file stays mode=ro
        source.execute("VACUUM INTO ?", (str(target),))
    with closing(connect(target, read_only=True)) as copy:
        found = problems(copy)
    if found:
        raise OutsideFault(target, f"the copy is not sound: {found[0]}")


def _refuse_shared_directory(directory: Path) -> None:
    """SQLite opens the file by name, so nobody else may be able to put another one in its place.

    Nor one beside it, as in a sticky directory such as /tmp: what is called like its journal is read as one.
    """
    try:
        shared = others_may_write(directory)
    except OSError as error:
        raise OutsideFault(directory, f"{error.strerror}; the backup was not made") from None
    if shared:
        raise OutsideFault(
            directory, "others can write here and could swap the backup: use your own directory"
        )
