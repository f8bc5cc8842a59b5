"""Which effects a new lease needs on this node: what the node has decides, never a version number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nodeagent.adapters.cgroup import CgroupTree, nest_below
from nodeagent.adapters.limits import effective_limits
from nodeagent.domain.clock import Clock
from nodeagent.domain.container import Container, Engine
from nodeagent.domain.device import Inventory
from nodeagent.domain.environment import guarantee_of
from nodeagent.domain.errors import NotAllowed
from nodeagent.domain.guarantee import Guarantee, Requirement
from nodeagent.domain.lease import Anchor, AnchorKind, Lease, PlacedSlice
from nodeagent.domain.records import EffectRecord
from nodeagent.domain.request import Request
from nodeagent.service.cgroup_effects import ADOPTED, CGROUP, OCCUPANTS, PROCESS, home_of
from nodeagent.service.effects import Planned
from nodeagent.service.job_effects import job_home
from nodeagent.service.means import Door, Means, Setting, why_not
from nodeagent.service.orders import Behalf, Caller, Tier


class Planner:
    """Plans the journal of a lease from the node's *means*. *tree* is None where no cgroups can be made.

    *floor* is what the site demands of every lease, beside what its request demands. *doors* are shut first.
    """

    def __init__(
        self,
        tree: CgroupTree | None,
        no_tree: str | None,
        means: Sequence[Means],
        clock: Clock,
        floor: Requirement | None = None,
        doors: Sequence[Door] = (),
        elsewhere: Callable[[Container], bool] = lambda container: False,
    ) -> None:
        self._tree = tree
        self._no_tree = no_tree
        self._means = tuple(means)
        self._clock = clock
        self._floor = floor or Requirement()
        self._doors = tuple(doors)
        self._elsewhere = elsewhere  # whether a container's engine keeps it in other cgroups than the leases'

    def home(
        self,
        lease_id: int,
        caller: Caller,
        anchor: Anchor,
        *,
        adopted: bool,
        contained: bool = False,
        behalf: Behalf | None = None,
    ) -> list[Planned]:
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
            home = self._home(self._tree, caller, behalf, nests=not contained)
            planned.append(Planned(CGROUP, {"lease": lease_id, **home}))
        return planned

    def unmet(
        self,
        uid: int,
        request: Request,
        placed: Sequence[PlacedSlice],
        inventory: Inventory,
        *,
        adopted: bool,
        container: Container | None = None,
    ) -> tuple[str, ...]:
        """What of the request's and the site's demands this node could not hold for such a lease.

        After that what would, by tier, and why it does not.
        """
        cgroup = None if adopted or self._tree is None else {"lease": None, "parent": None}
        setting = self._setting(uid, request, cgroup, placed, inventory, container, adopted=adopted)
        every = (*self._means, *self._doors)
        promised = guarantee_of(placed, inventory).with_holds(means.promise(setting) for means in every)
        short = self._demanded(request).short_of(promised)
        would = [means for means in self._means if short.helped_by(means.at_best)]
        closed = [why for door in self._doors if (why := door.closed(setting))]
        return *short.unmet(promised), *(why_not(means, setting) for means in would), *closed

    def shortfall(self, request: Request, given: Guarantee) -> tuple[str, ...]:
        """What the request or the site demands and *given* does not hold."""
        return self._demanded(request).unmet(given)

    def limits(
        self,
        lease_id: int,
        uid: int,
        request: Request,
        journal: Sequence[EffectRecord],
        placed: Sequence[PlacedSlice],
        inventory: Inventory,
        container: Container | None = None,
    ) -> list[Planned]:
        """The further effects, known once the slices are: what is set before anyone enters.

        Occupants come last but for the doors, so that they are gone before what holds them is undone, and
        nobody comes in meanwhile.
        """
        home = next((record for record in journal if record.kind == CGROUP), None)
        cgroup = None if home is None else home_of(home.arguments)
        adopted = adopted_by(journal)
        setting = self._setting(uid, request, cgroup, placed, inventory, container, adopted=adopted)
        planned = [effect for means in self._means for effect in means.plan(lease_id, setting)]
        if cgroup is not None:
            planned.append(Planned(OCCUPANTS, cgroup))
        return planned + [effect for door in self._doors for effect in door.plan(lease_id, setting)]

    def guest(self, lease: Lease, held: Container, inventory: Inventory) -> Setting:
        """What is held of a container in *lease*, which holds it as it holds its other programs."""
        placed = [one.placed for one in lease.slices]
        return self._setting(lease.holder.uid, lease.request, None, placed, inventory, held, adopted=False)

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
        return cgroup, *(means.tier() for means in (*self._means, *self._doors))

    def _setting(
        self,
        uid: int,
        request: Request,
        cgroup: Mapping[str, Any] | None,
        placed: Sequence[PlacedSlice],
        inventory: Inventory,
        container: Container | None,
        *,
        adopted: bool,
    ) -> Setting:
        """What comes into the lease's cgroup late, or never, is not held by it."""
        inside = cgroup
        if request.cdi or (container is not None and self._elsewhere(container)):
            inside = None
        given = container or (Container(Engine.DOCKER) if request.cdi else None)
        return Setting(
            uid,
            self._demanded(request),
            inside,
            adopted,
            tuple(placed),
            inventory,
            request.cdi,
            given,
            request.queue_priority,
        )

    def _demanded(self, request: Request) -> Requirement:
        return request.require.and_floor(self._floor)

    def _home(
        self, tree: CgroupTree, caller: Caller, behalf: Behalf | None, *, nests: bool
    ) -> dict[str, Any]:
        """Where the cgroup goes: below *parent* (None: in the agent's own subtree), with *limits* copied.

        A container's *nests* nowhere: its engine finds it in the agent's subtree alone.
        """
        if behalf is not None and behalf.home is not None:
            return job_home(tree, behalf.home, self._clock)
        current = tree.cgroup_of(caller.pid)
        if current is not None and not current.isprintable():
            raise NotAllowed("the caller's cgroup has a name that cannot be recorded: ask from another one")
        parent = nest_below(current) if behalf is None and nests else None
        limits = {} if parent is not None or current is None else effective_limits(tree, current).to_json()
        return {"parent": parent, "limits": limits}


def adopted_by(journal: Sequence[EffectRecord]) -> bool:
    """Whether the lease of *journal*, as booked, takes in what runs already."""
    return any(record.kind == ADOPTED or record.arguments.get("strict") for record in journal)
