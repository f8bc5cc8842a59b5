"""The kernel tier: VRAM limits of the dmem controller on the lease's cgroup."""

from __future__ import annotations

from collections.abc import Sequence

from nodeagent.adapters.dmem import DmemController
from nodeagent.domain.guarantee import Hold
from nodeagent.service.cgroup_effects import DMEM
from nodeagent.service.effects import Planned
from nodeagent.service.means import Setting
from nodeagent.service.orders import Tier


class KernelMeans:
    """Plans a limit for every region that the lease's slices draw on. *dmem* is None without cgroup2."""

    def __init__(self, dmem: DmemController | None) -> None:
        self._dmem = dmem

    def tier(self) -> Tier:
        why = self._dmem.unavailable() if self._dmem else "needs a cgroup2 mount"
        return Tier(
            "dmem",
            why is None,
            why or "dmem.max is set and read back; memory stays advisory until all else is closed too",
        )

    def promise(self, setting: Setting) -> Hold:
        return Hold()

    def plan(self, lease_id: int, setting: Setting) -> Sequence[Planned]:
        regions = self._regions(setting) if setting.cgroup is not None else {}
        return [Planned(DMEM, {**(setting.cgroup or {}), "regions": regions})] if regions else []

    def _regions(self, setting: Setting) -> dict[str, int]:
        if self._dmem is None or self._dmem.unavailable() is not None:
            return {}
        known = self._dmem.capacity()
        regions: dict[str, int] = {}
        for one in setting.placed:
            pool = setting.inventory.pool(one.pool)
            if pool and pool.region in known:
                regions[pool.region] = regions.get(pool.region, 0) + one.vram_bytes
        return regions
