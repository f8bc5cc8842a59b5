"""Calls that a user can make wait for ever, given up after a while so that nobody else waits with them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Bounded(Generic[T]):
    """Runs one call at a time, in a thread that is left behind where it does not come back."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._turn = threading.Lock()
        self._thread: threading.Thread | None = None

    def call(self, what: Callable[[], T]) -> T | None:
        """What *what* returns; None where it takes too long, or others before it do.

        Raises what it raises.
        """
        if not self._turn.acquire(timeout=self._seconds):
            return None
        try:
            return self._call(what)
        finally:
            self._turn.release()

    def _call(self, what: Callable[[], T]) -> T | None:
        if self._thread is not None and self._thread.is_alive():
            return None  # it was given up, and still has not come back
        answers: queue.SimpleQueue[tuple[T | None, Exception | None]] = queue.SimpleQueue()

        def run() -> None:
            try:
                answers.put((what(), None))
            except Exception as fault:  # handed to who waits
                answers.put((None, fault))

        self._thread = threading.Thread(target=run, name="bounded", daemon=True)
        self._thread.start()
        try:
            answer, fault = answers.get(timeout=self._seconds)
        except queue.Empty:
            return None
        self._thread.join()
        if fault is not None:
            raise fault
        return answer
