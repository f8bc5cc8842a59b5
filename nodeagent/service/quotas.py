"""What one uid may ask for: leases, queue places and grants a second. Administrators are not counted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from nodeagent.domain.clock import SECOND_NS, Clock
from nodeagent.domain.errors import TooMany
from nodeagent.domain.records import Counts
from nodeagent.domain.refusals import Code, Refusal
from nodeagent.service.orders import Caller
from nodeagent.service.quota_rules import QuotaRules

REMEMBERED_UIDS = 4096


@dataclass(frozen=True, slots=True)
class QuotaLimits:
    """Per uid; a subordinate uid counts for its owner."""

    live_leases: int = 16
    queued_leases: int = 8
    grants_per_second: float = 5.0


# Attaching and renewing are written down as well. The ranks of a job attach at once: much may be saved up.
CALLS_PER_GRANT = 2
CALLS_SAVED = 1000


class TokenBuckets:
    """By owner: *rate* tokens a second, of which at most *most* are saved up."""

    def __init__(self, rate: float, most: float, clock: Clock) -> None:
        self._rate = rate
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        self._left: dict[int, tuple[float, int]] = {}  # owner: tokens left, boot time of the count

    def take(self, owner: int) -> float:
        """Take a token; 0, or the seconds until there is one. A try in vain costs nothing."""
        now = self._clock.boot_ns()
        with self._lock:
            tokens, since = self._left.pop(owner, (self._most, now))
            tokens = min(self._most, tokens + (now - since) / SECOND_NS * self._rate)
            self._left[owner] = (tokens - 1 if tokens >= 1 else tokens, now)
            while len(self._left) > REMEMBERED_UIDS:
                del self._left[next(iter(self._left))]
        return 0 if tokens >= 1 else (1 - tokens) / self._rate


class Quotas:
    """Answers whether a caller may have one more. *owner_of* maps a subordinate uid to who owns it."""

    def __init__(
        self,
        limits: QuotaLimits,
        clock: Clock,
        owner_of: Callable[[int], int],
        rules: QuotaRules | None = None,
    ) -> None:
        self._limits = limits
        self.owner_of = owner_of
        self.rules = rules or QuotaRules()
        rate = limits.grants_per_second
        self._grants = TokenBuckets(rate, max(1.0, rate), clock)
        self._calls = TokenBuckets(CALLS_PER_GRANT * rate, CALLS_SAVED, clock)

    def charged(self, caller: Caller) -> int:
        """The uid whose limits *caller* uses up."""
        return self.owner_of(caller.uid)

    def take_token(self, caller: Caller) -> None:
        """Count one grant. Raises TooMany when the caller asks faster than its rate."""
        self._take(self._grants, caller, f"{self._limits.grants_per_second:g} grants a second")

    def take_call(self, caller: Caller) -> None:
        """Count one attach or renewal. Raises TooMany when the caller has asked too often for long."""
        self._take(self._calls, caller, "so many attaches and renewals")

    def _take(self, buckets: TokenBuckets, caller: Caller, what: str) -> None:
        wait = 0 if caller.administrator else buckets.take(self.charged(caller))
        if wait:
            raise TooMany(f"more than {what}", retry_after=wait)

    def refusal(self, caller: Caller, counts: Counts, *, queueing: bool = False) -> Refusal | None:
        """The refusal that the caller's own limits give, or None."""
        if caller.administrator:
            return None
        # Those that wait count as well: each becomes a live one without being asked again. So do those whose
        # slices are not clean: who leaves memory behind must not take a whole node out of use that way.
        if counts.live + counts.queued + counts.quarantined >= self._limits.live_leases:
            beside = ((counts.queued, "wait"), (counts.quarantined, "are not proved clean"))
            said = "".join(f", {number} {what}" for number, what in beside if number)
            return Refusal(
                Code.QUOTA_NOT_FIT,
                f"you hold {counts.live} leases{said}; {self._limits.live_leases} are allowed",
                "release one first (`gpulease show mine` lists them)",
            )
        if queueing and counts.queued >= self._limits.queued_leases:
            return Refusal(
                Code.QUOTA_NOT_FIT,
                f"{counts.queued} of your requests wait, {self._limits.queued_leases} may",
                "cancel one, or ask without waiting",
            )
        return None
