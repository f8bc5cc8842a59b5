"""For which regions VRAM limits hold: tried, closed outside leases, and put back where somebody took them."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import structlog

from nodeagent.adapters.dmem import DmemController
from nodeagent.adapters.selftest import SelfTest
from nodeagent.domain.device import DeviceState, Inventory
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.lease import LeaseState
from nodeagent.domain.records import EffectRecord
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.cgroup_effects import DMEM, ref_of
from nodeagent.service.closure import Closing
from nodeagent.service.job_effects import in_job, keeps_job
from nodeagent.service.lifting import lift_all
from nodeagent.service.survey import Survey

log = structlog.get_logger()

TRY_SECONDS = 2.0  # of one look: leases are looked at by the same thread
# Before a region that failed is tried again: a busy node answers late, and must not lack the tier for good.
AGAIN_SECONDS = 600.0


class KernelTier:
    """*leave_out* says why a card (by PCI address) is left alone, for instance for it drives a display."""

    def __init__(
        self,
        dmem: DmemController,
        closing: Closing,
        selftest: SelfTest,
        ledger: Ledger,
        survey: Survey,
        *,
        enabled: bool = True,
        leave_out: Callable[[str], str | None] = lambda pci: None,
        opened: Callable[[], str | None] = lambda: None,
        lifted: Callable[[], bool] = lambda: False,
    ) -> None:
        self._dmem = dmem
        self._closing = closing
        self._selftest = selftest
        self._ledger = ledger
        self._survey = survey
        self._enabled = enabled
        self._leave_out = leave_out
        self._opened = opened  # why nothing outside leases is to be closed now
        self._lifted = lifted  # whether the leases' own limits are to be off, too
        self._were_lifted = False
        self._generation: int | None = None
        self._tried: dict[str, str | None] = {}  # why limits of a region have no effect; None: they have
        self._tried_at: dict[str, float] = {}  # by region, in monotonic seconds
        self._ended = False

    def why_not(self, regions: Iterable[str]) -> str | None:
        """Why limits of *regions* do not hold against everybody on this node; None: they do."""
        if not self._enabled:
            return "turned off by closure.enabled"
        if opened := self._opened():
            return opened
        for region in regions:
            why = self._tried.get(region, f"{region}: not tried yet") or self._closing.why_open(region)
            if why is not None:
                return why
        return None

    def state(self) -> Mapping[str, str | None]:
        """Of each region that the kernel lists, why its limits do not hold; None: they do."""
        return {region: self.why_not([region]) for region in self._dmem.capacity()}

    def closed(self) -> frozenset[str]:
        """The regions of which nothing is to be had but by a lease of them."""
        return frozenset(self._closing.regions())

    def nested(self) -> None:
        """A lease began in a job or a service: let it through to what it holds, and all else not."""
        if self._enabled and self._opened() is None:
            self._closing.again()

    def look(self) -> None:
        """Try what is new, close, and put back what somebody took away."""
        opened = not self._enabled or self._opened() is not None
        if opened and not self._ended:
            self._closing.end()
        self._ended = opened
        if not self._enabled or self._dmem.unavailable() is not None:
            return
        if self._lifted():
            self._were_lifted = True
            live = [lease.id for lease in self._ledger.live()]
            journals = self._ledger.journals(live, (DMEM,)).values()
            lift_all(self._dmem, [record for journal in journals for record in journal])
            return
        self._try(self._survey.found())
        if not opened:
            self._closing.look([region for region, why in self._tried.items() if why is None])
        self._restore()
        self._were_lifted = False

    def _try(self, inventory: Inventory) -> None:
        """Test regions that were not since the topology changed, or failed long ago, in a part of a look."""
        if inventory.generation != self._generation:
            self._generation, self._tried, self._tried_at = inventory.generation, {}, {}
        known, until = self._dmem.capacity(), time.monotonic() + TRY_SECONDS
        for device in inventory.devices:
            pool = inventory.pool(device.pool)
            if pool is None or pool.region not in known or not self._due(pool.region):
                continue
            if device.state is not DeviceState.HEALTHY or not device.render_node:
                continue
            left_out = self._leave_out(device.pci)
            why = left_out or self._selftest.run(
                pool.region, f"/dev/dri/{device.render_node}", device.gpu_id or 0
            )
            if self._tried.get(pool.region, "") != why:
                log.info("tried VRAM limits", region=pool.region, why_not=why)
            self._tried[pool.region] = why
            self._tried_at[pool.region] = time.monotonic()
            if time.monotonic() >= until:
                return

    def _due(self, region: str) -> bool:
        """Whether it was never tried, or failed long ago."""
        if region not in self._tried:
            return True
        return self._tried[region] is not None and time.monotonic() - self._tried_at[region] >= AGAIN_SECONDS

    def _restore(self) -> None:
        """Write the limits of active leases again where they are not what was verified.

        Raises OutsideFault after all were tried: up to Linux 7.2 no limit can be put below what was used
        meanwhile. The watch tells of that lease's over-use, and a later look succeeds.
        """
        failed: OutsideFault | None = None
        active = [lease.id for lease in self._ledger.live(LeaseState.ACTIVE)]
        for journal in self._ledger.journals(active, (DMEM,)).values():
            for record in journal:
                if not record.arguments.get("shared"):
                    try:
                        self._restore_one(record)
                    except OutsideFault as fault:
                        failed = fault
        if failed is not None:
            raise failed

    def _restore_one(self, record: EffectRecord) -> None:
        ref = ref_of(record.evidence or {})
        if ref is None:
            return
        told: Any = record.arguments["regions"]
        wanted = {str(region): int(limit) for region, limit in told.items()}
        try:
            held = self._dmem.limits(ref)
            keeps = keeps_job if in_job(record.arguments) else operator.eq
            lost = {region: limit for region, limit in wanted.items() if not keeps(held.get(region), limit)}
            if lost:
                self._dmem.enable(ref.path)
                for region, limit in lost.items():
                    self._dmem.limit(ref, region, limit)
        except FileNotFoundError:
            return  # its occupants went with it: the anchor's to see
        if lost:
            why = "enforced again" if self._were_lifted else "somebody changed it"
            with self._ledger.write(release=True) as tx:
                tx.event("limit_restored", uid=None, lease=record.lease, reason=why, data=lost)
