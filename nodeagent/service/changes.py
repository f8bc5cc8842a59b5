"""Wakes those who wait for the ledger to change: requests that follow a lease, and the reconciler."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Changes:
    """A counter that threads can wait on; every change wakes them all to look again."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._count = 0
        self._listeners: list[Callable[[], None]] = []

    def listen(self, wake: Callable[[], None]) -> None:
        """Call *wake*, which must not block, at every change."""
        self._listeners.append(wake)

    def announce(self) -> None:
        for wake in self._listeners:
            wake()
        with self._condition:
            self._count += 1
            self._condition.notify_all()

    def wait_for(self, look: Callable[[], T | None], seconds: float) -> T | None:
        """Call *look* now and after every change until it gives something or *seconds* have passed.

        *look* runs without the lock, so it may read the ledger; a change meanwhile is not missed.
        """
        deadline = _Deadline(seconds)
        while True:
            with self._condition:
                seen = self._count
            found = look()
            if found is not None:
                return found
            with self._condition:
                while self._count == seen:
                    if not self._condition.wait(deadline.left()) and deadline.passed():
                        return None
            if deadline.passed():
                return look()


class _Deadline:
    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds

    def left(self) -> float:
        return max(0.0, self._at - time.monotonic())

    def passed(self) -> bool:
        return time.monotonic() >= self._at
