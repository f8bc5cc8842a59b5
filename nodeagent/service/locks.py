"""One lock a lease: what acts on a lease outside the ledger happens one at a time."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class LeaseLocks:
    """Locks by lease id, kept only while someone holds or awaits them."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[int, threading.Lock] = {}
        self._users: dict[int, int] = defaultdict(int)

    @contextmanager
    def of(self, lease_id: int) -> Iterator[None]:
        with self._guard:
            lock = self._locks.setdefault(lease_id, threading.Lock())
            self._users[lease_id] += 1
        try:
            with lock:
                yield
        finally:
            with self._guard:
                self._users[lease_id] -= 1
                if not self._users[lease_id]:
                    del self._users[lease_id], self._locks[lease_id]
