"""A ledger that another process writes: read as it stands, without waiting for that one or stopping it."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sqlalchemy import Connection

from nodeagent.domain.clock import Clock
from nodeagent.ledger import checks
from nodeagent.ledger.engine import connect, engine
from nodeagent.ledger.faults import translated
from nodeagent.ledger.queries import Queries

_STEPS = 10_000  # of SQLite's machine between two looks at the time


class LedgerReader(Queries):
    """Nothing is locked that a writer needs, in SQLite's write-ahead mode. Raises LedgerUnavailable."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._engine = engine(path, begin="BEGIN", read_only=True)

    def close(self) -> None:
        self._engine.dispose()

    def problems(self, seconds: float) -> tuple[str, ...] | None:
        """What is wrong with the database; None where that could not be told in so many seconds."""
        until = time.monotonic() + seconds
        with translated(self._path), closing(connect(self._path, read_only=True)) as connection:
            connection.set_progress_handler(lambda: int(time.monotonic() > until), _STEPS)
            try:
                return checks.problems(connection)
            except sqlite3.OperationalError:
                if time.monotonic() > until:
                    return None
                raise

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        with translated(self._path), self._engine.begin() as connection:
            yield connection
