"""Leases that are busy and are not seen to get on: LEASE_STALLED, a hint and no proof."""

from __future__ import annotations

from collections.abc import Callable, Collection

import structlog

from nodeagent.domain import watch
from nodeagent.domain.clock import SECOND_NS, Clock
from nodeagent.domain.lease import Lease
from nodeagent.domain.watch import Sample, Still
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.changes import Changes
from nodeagent.service.sampling import Look

log = structlog.get_logger()


class Stalled:
    """Follows each lease from look to look. *sdma_us* gives the SDMA time of processes, µs; it is slow."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        changes: Changes,
        sdma_us: Callable[[Collection[int]], int],
        *,
        seconds: float,
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._changes = changes
        self._read_sdma_us = sdma_us
        self._seconds = seconds
        self._still: dict[int, Still] = {}
        self._sdma_us: dict[int, int] = {}
        self._told: set[int] = set()

    def note(self, look: Look) -> None:
        """Tell of each lease that has stood still for long, once for as long as it does."""
        now = self._clock.boot_ns()
        self._still = {
            lease.id: watch.follow(self._still.get(lease.id), watch.activity(look.sample, lease.id), now)
            for lease in look.active
        }
        for lease in look.active:
            still = self._still[lease.id]
            if still.why is None:
                self._told.discard(lease.id)
                self._sdma_us.pop(lease.id, None)
            elif lease.id not in self._told and self._long(now - still.since_ns):
                self._suspect(lease, still, look.sample, now)
        self._told &= self._still.keys()

    def _long(self, still_ns: int) -> bool:
        return 0 < self._seconds * SECOND_NS <= still_ns

    def _suspect(self, lease: Lease, still: Still, sample: Sample, now: int) -> None:
        """Look at the slow counter last, and twice: copies that go on are progress."""
        sdma_us = self._read_sdma_us(sample.pids(lease.id))
        before = self._sdma_us.get(lease.id)
        self._sdma_us[lease.id] = sdma_us
        if before is None:
            return
        if sdma_us != before:
            self._still[lease.id] = Still(still.activity, None, now)
            return
        self._told.add(lease.id)
        self._tell(lease, still, (now - still.since_ns) // SECOND_NS)

    def _tell(self, lease: Lease, still: Still, seconds: int) -> None:
        masks = {held.placed.device: f"{held.placed.cus.bits:#x}" for held in lease.slices}
        with self._ledger.write(release=True) as tx:
            tx.event(
                "lease_stalled",
                uid=None,
                lease=lease.id,
                reason=f"for {seconds} s {still.why}",
                data={"masks": masks, "seconds": seconds},
            )
        log.warning("LEASE_STALLED", lease=lease.id, why=still.why, masks=masks)
        self._changes.announce(lease.id)
