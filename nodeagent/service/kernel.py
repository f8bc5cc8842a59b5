"""The kernel tier: VRAM limits of the dmem controller on the lease's cgroup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nodeagent.adapters.dmem import DmemController
from nodeagent.domain.guarantee import Hold, Memory
from nodeagent.domain.lease import PlacedSlice
from nodeagent.service.cgroup_effects import DMEM
from nodeagent.service.effects import Planned
from nodeagent.service.job_effects import in_job
from nodeagent.service.kernel_tier import KernelTier
from nodeagent.service.means import Setting
from nodeagent.service.orders import Tier

HOLDS = "dmem.max holds each lease, and all else is closed"


class KernelMeans:
    """Plans a limit for every region that the lease's slices draw on. *dmem* is None without cgroup2.

    Without a *tier*, which knows what limits are worth on this node, limits are set and nothing is promised.
    """

    at_best = Hold(memory=Memory.KERNEL)

    def __init__(self, dmem: DmemController | None, tier: KernelTier | None = None) -> None:
        self._dmem = dmem
        self._tier = tier

    def tier(self) -> Tier:
        why = self._dmem.unavailable() if self._dmem else "needs a cgroup2 mount"
        if why is not None:
            return Tier("dmem", False, why)
        if self._tier is None:
            return Tier("dmem", True, "dmem.max is set and read back; nothing outside leases is closed")
        state = self._tier.state()
        failing = [why for why in state.values() if why is not None]
        if not failing:
            return Tier("dmem", True, HOLDS)
        said = f"on {len(failing)} of {len(state)} regions limits are set but do not hold: {failing[0]}"
        return Tier("dmem", len(failing) < len(state), said)

    def promise(self, setting: Setting) -> Hold:
        if setting.cgroup is None or setting.adopted:
            return Hold()
        regions = self._regions(setting)
        whole = all(_region(one, setting) in regions for one in setting.placed)
        return self.at_best if whole and self._holds(regions) else Hold()

    def plan(self, lease_id: int, setting: Setting) -> Sequence[Planned]:
        regions = self._regions(setting)
        if setting.cgroup is None or not regions or self._dmem is None:
            return []
        arguments = {**setting.cgroup, "regions": regions}
        parent = setting.cgroup["parent"]
        if parent is None or self._dmem.divisible(parent):
            return [Planned(DMEM, arguments)]
        if in_job(arguments):
            return []
        # The job runs beside its lease, in the parent itself, where no child can have a limit. The closure
        # then holds the whole job at what its leases hold.
        return [Planned(DMEM, {**arguments, "shared": True})] if self._holds(regions) else []

    def _holds(self, regions: Mapping[str, int]) -> bool:
        return bool(regions) and self._tier is not None and self._tier.why_not(regions) is None

    def _regions(self, setting: Setting) -> dict[str, int]:
        if self._dmem is None or self._dmem.unavailable() is not None:
            return {}
        known = self._dmem.capacity()
        regions: dict[str, int] = {}
        for one in setting.placed:
            region = _region(one, setting)
            if region in known:
                regions[region] = regions.get(region, 0) + one.vram_bytes
        return regions


def _region(placed: PlacedSlice, setting: Setting) -> str:
    """The region that *placed* draws on; empty where its pool is not known any more."""
    pool = setting.inventory.pool(placed.pool)
    return pool.region if pool else ""
