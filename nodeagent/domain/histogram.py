"""How long things took, counted in buckets as Prometheus wants them."""

from __future__ import annotations

from dataclasses import dataclass

# From a ledger write to a proof that waits for every step's whole time.
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True, slots=True)
class Buckets:
    """*counts*: observations up to each of *bounds*, seconds, and one more for all; *total*: their sum."""

    bounds: tuple[float, ...] = SECONDS
    counts: tuple[int, ...] = (0,) * (len(SECONDS) + 1)
    total: float = 0.0
