"""How long things took, counted in buckets as Prometheus wants them."""

from __future__ import annotations

import threading
from bisect import bisect_left
from dataclasses import dataclass

# From a ledger write to a proof that waits for every step's whole time.
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True, slots=True)
class Buckets:
    """*counts*: observations up to each of *bounds*, seconds, and one more for all; *total*: their sum."""

    bounds: tuple[float, ...] = SECONDS
    counts: tuple[int, ...] = (0,) * (len(SECONDS) + 1)
    total: float = 0.0


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
