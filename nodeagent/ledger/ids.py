"""Lease ids: taken in blocks whose high-water mark lies beside the database, so a restore reuses none."""

from __future__ import annotations

import threading
from pathlib import Path

from nodeagent.domain.errors import LedgerUnavailable
from nodeagent.ledger.files import write_durably

BLOCK = 1000


class IdBlocks:
    """Strictly increasing ids. The mark is on disk before the first id of its block is given out."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._next = self._last = 0
        self._floor = 0
        self._lock = threading.Lock()

    def start(self, floor: int) -> None:
        """The next id comes from a new block above *floor* and the mark."""
        with self._lock:
            self._floor = floor
            self._next = self._last = 0

    def take(self, above: int) -> int:
        """The next id, greater than *above*, the highest one in the database.

        Raises:
            LedgerUnavailable: the mark cannot be read or written.
        """
        with self._lock:
            if not max(above + 1, 1) <= self._next <= self._last:
                self._open_block(above)
            taken = self._next
            self._next += 1
            return taken

    def _open_block(self, above: int) -> None:
        base = max(self._mark(), self._floor, above)
        try:
            write_durably(self._file, f"{base + BLOCK}\n")
        except OSError as error:
            raise LedgerUnavailable(f"{self._file}: {error.strerror}; no lease id can be given") from error
        self._next, self._last = base + 1, base + BLOCK

    def _mark(self) -> int:
        try:
            text = self._file.read_text(encoding="ascii", errors="replace").strip()
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise LedgerUnavailable(f"{self._file}: {error.strerror}; no lease id can be given") from error
        if not text.isdecimal():
            raise LedgerUnavailable(
                f"{self._file}: holds no number; write the highest lease id ever given into it,"
                " or remove it to count on from the database"
            )
        return int(text)
