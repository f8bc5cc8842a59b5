"""Wakes those who wait for the ledger to change: requests that follow a lease, and the reconciler."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Changes:
    """Waiters by the lease that they follow: a change wakes those of its lease, not the whole house."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiters: defaultdict[int | None, set[threading.Event]] = defaultdict(set)
        self._listeners: list[Callable[[int | None], None]] = []
        self._closed = False

    def listen(self, wake: Callable[[int | None], None]) -> None:
        """Call *wake*, which must not block, at every change: with its lease, or None."""
        self._listeners.append(wake)

    def announce(self, lease_id: int | None = None) -> None:
        """Something changed: of one lease, or (None) of anything."""
        for wake in self._listeners:
            wake(lease_id)
        with self._guard:
            followed = self._waiters if lease_id is None else (lease_id, None)
            for key in tuple(followed):
                for event in self._waiters.get(key, ()):
                    event.set()

    def close(self) -> None:
        """Let nobody wait any more, for this process is to end: who waits looks once more, and no longer."""
        self._closed = True
        self.announce()

    def wait_for(
        self,
        look: Callable[[], T | None],
        seconds: float,
        *,
        lease_id: int | None = None,
        through_close: bool = False,
    ) -> T | None:
        """Call *look* now and after every change until it gives something or *seconds* have passed.

        With *lease_id* only after changes of that lease. *look* runs without the lock, so it may read the
        ledger; a change meanwhile is not missed. *through_close*: this process still does what is waited for.
        """
        deadline = time.monotonic() + seconds
        changed = threading.Event()
        with self._guard:
            self._waiters[lease_id].add(changed)
        try:
            while True:
                changed.clear()
                found = look()
                if found is not None:
                    return found
                if self._closed and not through_close:
                    return None
                if not changed.wait(max(0.0, deadline - time.monotonic())):
                    return None
        finally:
            with self._guard:
                self._waiters[lease_id].discard(changed)
                if not self._waiters[lease_id]:
                    del self._waiters[lease_id]
