"""Which effects a new lease needs on this node: what the node has decides, never a version number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nodeagent.adapters.cgroup import CgroupTree, nest_below
from nodeagent.adapters.dmem import DmemController
from nodeagent.adapters.limits import effective_limits
from nodeagent.domain.clock import Clock
from nodeagent.domain.device import Inventory
from nodeagent.domain.errors import NotAllowed
from nodeagent.domain.lease import Anchor, AnchorKind, PlacedSlice
from nodeagent.domain.records import EffectRecord
from nodeagent.service.cgroup_effects import ADOPTED, CGROUP, DMEM, OCCUPANTS, PROCESS
from nodeagent.service.effects import Planned
from nodeagent.service.orders import Caller, Tier


@dataclass(frozen=True, slots=True)
class Home:
    """Where a lease's cgroup goes: below *parent* (None: the agent's own subtree), with *limits* copied."""

    parent: str | None
    limits: dict[str, str]


class Planner:
    """Plans the journal of a lease. *tree* is None where the agent may make no cgroups."""

    def __init__(
        self, tree: CgroupTree | None, no_tree: str | None, dmem: DmemController | None, clock: Clock
    ) -> None:
        self._tree = tree
        self._no_tree = no_tree
        self._dmem = dmem
        self._clock = clock

    def home(self, lease_id: int, caller: Caller, anchor: Anchor, *, adopted: bool) -> list[Planned]:
        """The first effects, known from who asks: where the holder runs, or what is watched instead."""
        if adopted and anchor.cgroup is not None:
            return [
                Planned(
                    ADOPTED, {"path": anchor.cgroup, "inode": anchor.inode, "boot_id": self._clock.boot_id}
                )
            ]
        if adopted and anchor.pid is not None:
            return [self.process(anchor.pid, anchor.start_time or 0, strict=True)]
        planned: list[Planned] = []
        if anchor.kind is AnchorKind.PROCESS and anchor.armed and anchor.pid is not None:
            planned.append(self.process(anchor.pid, anchor.start_time or 0, strict=False))
        if self._tree is not None:
            home = self._home(self._tree, caller)
            planned.append(Planned(CGROUP, {"lease": lease_id, "parent": home.parent, "limits": home.limits}))
        return planned

    def limits(
        self, journal: Sequence[EffectRecord], placed: Sequence[PlacedSlice], inventory: Inventory
    ) -> list[Planned]:
        """The further effects, known once the slices are: what is set on the cgroup before anyone enters.

        Occupants come last, so that they are gone before anything that holds them is undone.
        """
        cgroup = next((record for record in journal if record.kind == CGROUP), None)
        if cgroup is None:
            return []
        where = {"lease": cgroup.arguments["lease"], "parent": cgroup.arguments["parent"]}
        regions = self._regions(placed, inventory)
        dmem = [Planned(DMEM, {**where, "regions": regions})] if regions else []
        return [*dmem, Planned(OCCUPANTS, where)]

    def process(self, pid: int, start_time: int, *, strict: bool) -> Planned:
        """Hold the slice for a process outside every cgroup of ours; *strict*: until it has ended."""
        return Planned(
            PROCESS,
            {"pid": pid, "start_time": start_time, "boot_id": self._clock.boot_id, "strict": strict},
        )

    def tiers(self) -> tuple[Tier, ...]:
        """What this node offers, and why not what it lacks."""
        cgroup = Tier(
            "cgroup", self._tree is not None, self._no_tree or "leases are grouped and ended by cgroup"
        )
        why = self._dmem.unavailable() if self._dmem and self._tree else "needs a cgroup2 mount"
        dmem = Tier(
            "dmem",
            why is None,
            why or "dmem.max is set and read back; memory stays advisory until all else is closed too",
        )
        return cgroup, dmem

    @staticmethod
    def _home(tree: CgroupTree, caller: Caller) -> Home:
        current = tree.cgroup_of(caller.pid)
        if current is not None and not current.isprintable():
            raise NotAllowed("the caller's cgroup has a name that cannot be recorded: ask from another one")
        parent = nest_below(current)
        limits = {} if parent is not None or current is None else effective_limits(tree, current).to_json()
        return Home(parent, limits)

    def _regions(self, placed: Sequence[PlacedSlice], inventory: Inventory) -> dict[str, int]:
        if self._dmem is None or self._dmem.unavailable() is not None:
            return {}
        known = self._dmem.capacity()
        regions: dict[str, int] = {}
        for one in placed:
            pool = inventory.pool(one.pool)
            if pool and pool.region in known:
                regions[pool.region] = regions.get(pool.region, 0) + one.vram_bytes
        return regions
