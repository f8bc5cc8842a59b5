"""Whether new leases may be granted: the ledger takes them, and nothing is known to be in doubt."""

from __future__ import annotations

from collections.abc import Callable

from nodeagent.domain.errors import LedgerUnavailable
from nodeagent.ledger.ledger import Ledger

Doubts = Callable[[], tuple[str, ...]]
MOST_TOLD = 4


class Readiness:
    """Each of *doubts* says what keeps grants back now."""

    def __init__(self, ledger: Ledger, *doubts: Doubts) -> None:
        self._ledger = ledger
        self._doubts = doubts

    def why_not(self) -> str | None:
        """Why no new lease is granted, or None."""
        health = self._ledger.health()
        if not health.writable:
            return f"the ledger takes no grants: {health.reason}"
        found = [one for doubts in self._doubts for one in doubts()]
        return "; ".join(found[:MOST_TOLD]) or None

    def check(self) -> None:
        """Raises LedgerUnavailable where no new lease is granted."""
        if why := self.why_not():
            raise LedgerUnavailable(why)
