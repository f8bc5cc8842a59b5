"""Counting how long things take, from any thread."""

from __future__ import annotations

import threading
from bisect import bisect_left

from nodeagent.domain.histogram import SECONDS, Buckets


class Histogram:
    """Counts observations, of any thread."""

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self._bounds = bounds
        self._lock = threading.Lock()
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, seconds: float) -> None:
        with self._lock:
            self._counts[bisect_left(self._bounds, seconds)] += 1
            self._total += seconds

    def buckets(self) -> Buckets:
        """What was observed so far; each count holds those below it."""
        with self._lock:
            counts, total = list(self._counts), self._total
        for at in range(1, len(counts)):
            counts[at] += counts[at - 1]
        return Buckets(self._bounds, tuple(counts), total)
