"""Connections to the database file, and the one place that sets their pragmas."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from sqlalchemy import Connection, Engine, QueuePool, create_engine, event

# Checkpoints after 1 MiB keep the write-ahead log, and so what a release may need, small.
_PRAGMAS = (
    "busy_timeout=5000",
    "journal_mode=WAL",
    "synchronous=FULL",  # NORMAL may lose the last grants with the power, while their jobs run
    "foreign_keys=ON",
    "trusted_schema=OFF",
    "wal_autocheckpoint=256",
)


class Lock(Protocol):
    """What a `threading.Lock` does."""

    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool: ...

    def release(self) -> None: ...


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """Open an existing file in autocommit mode: the driver must never begin a transaction by itself."""
    mode = "ro" if read_only else "rw"
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?mode={mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=5,
    )
    try:
        for pragma in ("busy_timeout=5000", "query_only=ON") if read_only else _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


def engine(path: Path, *, begin: str, read_only: bool = False) -> Engine:
    """An engine whose transactions start with *begin*. Make it after the fork; it connects on first use."""
    made = create_engine(
        "sqlite+pysqlite://",
        creator=lambda: connect(path, read_only=read_only),
        poolclass=QueuePool,
        pool_size=2,
        max_overflow=30,
        pool_timeout=5,
    )

    @event.listens_for(made, "begin")
    def _begin(connection: Connection) -> None:
        connection.connection.cursor().execute(begin)

    return made
