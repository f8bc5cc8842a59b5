"""What one uid may ask for: leases, queue places and grants a second. Administrators are not counted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from nodeagent.domain.clock import Clock
from nodeagent.domain.errors import TooMany
from nodeagent.domain.records import Counts
from nodeagent.domain.refusals import Code, Refusal
from nodeagent.service.orders import Caller

SECOND_NS = 1_000_000_000
REMEMBERED_UIDS = 4096


@dataclass(frozen=True, slots=True)
class QuotaLimits:
    """Per uid; a subordinate uid counts for its owner."""

    live_leases: int = 16
    queued_leases: int = 8
    grants_per_second: float = 5.0


class Quotas:
    """Answers whether a caller may have one more. *owner_of* maps a subordinate uid to who owns it."""

    def __init__(self, limits: QuotaLimits, clock: Clock, owner_of: Callable[[int], int]) -> None:
        self._limits = limits
        self._clock = clock
        self._owner_of = owner_of
        self._lock = threading.Lock()
        self._buckets: dict[int, tuple[float, int]] = {}  # owner: tokens left, boot time of the count

    def charged(self, caller: Caller) -> int:
        """The uid whose limits *caller* uses up."""
        return self._owner_of(caller.uid)

    def take_token(self, caller: Caller) -> None:
        """Count one grant. Raises TooMany when the caller asks faster than its rate."""
        if caller.administrator:
            return
        rate, now, owner = self._limits.grants_per_second, self._clock.boot_ns(), self.charged(caller)
        with self._lock:
            most = max(1.0, rate)
            tokens, since = self._buckets.pop(owner, (most, now))
            tokens = min(most, tokens + (now - since) / SECOND_NS * rate)
            # A refused try costs nothing: else one that is repeated too early would never come through.
            self._buckets[owner] = (tokens - 1 if tokens >= 1 else tokens, now)
            while len(self._buckets) > REMEMBERED_UIDS:
                del self._buckets[next(iter(self._buckets))]
        if tokens < 1:
            raise TooMany(f"more than {rate:g} grants a second", retry_after=(1 - tokens) / rate)

    def refusal(self, caller: Caller, counts: Counts, *, queueing: bool = False) -> Refusal | None:
        """The refusal that the caller's own limits give, or None."""
        if caller.administrator:
            return None
        # Those that wait count as well: each becomes a live one without being asked again.
        if counts.live + counts.queued >= self._limits.live_leases:
            waiting = f" and {counts.queued} wait" if counts.queued else ""
            return Refusal(
                Code.QUOTA_NOT_FIT,
                f"you hold {counts.live} leases{waiting}, {self._limits.live_leases} are allowed",
                "release one first (`gpulease status --user mine` lists them)",
            )
        if queueing and counts.queued >= self._limits.queued_leases:
            return Refusal(
                Code.QUOTA_NOT_FIT,
                f"{counts.queued} of your requests wait, {self._limits.queued_leases} may",
                "cancel one, or ask without waiting",
            )
        return None
