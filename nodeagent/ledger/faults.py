"""What SQLite's errors mean to the agent."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Generic, TypeVar

from sqlalchemy.exc import DBAPIError, SQLAlchemyError, TimeoutError

from nodeagent.domain.errors import AgentError, IllegalMove, LedgerConflict, LedgerUnavailable
from nodeagent.ledger.triggers import ILLEGAL_MOVE

Given = TypeVar("Given")


class DiskFull(LedgerUnavailable):
    """The file system took no more. An over-run quota is an I/O error to SQLite, so those count too."""


class Damaged(LedgerUnavailable):
    """The file is no database, or a broken one. It stays read-only until it is opened again."""


_KINDS: dict[int, tuple[type[LedgerUnavailable], str]] = {
    sqlite3.SQLITE_FULL: (DiskFull, "no space is left: make room on the state directory's file system"),
    sqlite3.SQLITE_IOERR: (DiskFull, "the disk failed or is over quota: see the kernel log"),
    sqlite3.SQLITE_CORRUPT: (Damaged, "the database is damaged: stop the agent and restore a backup"),
    sqlite3.SQLITE_NOTADB: (Damaged, "the file is no database: stop the agent and restore a backup"),
    sqlite3.SQLITE_READONLY: (LedgerUnavailable, "the file or its file system is read-only"),
    sqlite3.SQLITE_CANTOPEN: (LedgerUnavailable, "the file cannot be opened: check the state directory"),
    sqlite3.SQLITE_BUSY: (
        LedgerUnavailable,
        "another process holds the database: a second agent?",
    ),
}


def meaning(error: SQLAlchemyError | sqlite3.Error, path: Path) -> AgentError | None:
    """The agent's own error for *error*; None where it can only be a bug."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, sqlite3.IntegrityError):
        return IllegalMove(str(cause)) if str(cause).startswith(ILLEGAL_MOVE) else LedgerConflict(str(cause))
    if isinstance(cause, TimeoutError):
        return LedgerUnavailable("every connection to the ledger is in use")
    if not isinstance(cause, sqlite3.DatabaseError) or isinstance(cause, sqlite3.ProgrammingError):
        return None
    kind, likely = _KINDS.get(getattr(cause, "sqlite_errorcode", 0) & 0xFF, (LedgerUnavailable, ""))
    return kind(f"{path}: {cause}" + (f" ({likely})" if likely else ""))


class Translated(Generic[Given]):
    """A context that gives *given*, and raises the agent's own errors in place of SQLite's.

    It may be entered any number of times: a grant does so for each of its thirty statements.
    """

    def __init__(self, path: Path, given: Given) -> None:
        self._path = path
        self._given = given

    def __enter__(self) -> Given:
        return self._given

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, SQLAlchemyError | sqlite3.Error) and (known := meaning(error, self._path)):
            raise known from error


def translated(path: Path) -> Translated[None]:
    """Raise the agent's own errors in place of SQLite's, about the file *path*."""
    return Translated(path, None)
