"""Containers: what a lease gives to the container that it was taken for, and how it ends that container."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from nodeagent.domain.container import Container, Engine
from nodeagent.domain.device import Inventory
from nodeagent.domain.guarantee import Hold
from nodeagent.domain.lease import PlacedSlice
from nodeagent.service.admission import Admission
from nodeagent.service.cgroup_effects import CGROUP
from nodeagent.service.effects import Arguments, Done, Evidence, Pending, Planned, evidence_of
from nodeagent.service.means import Setting, mounts_of
from nodeagent.service.orders import Tier
from nodeagent.service.supervised_containers import profile_of

CONTAINER = "container"


class Parents(Protocol):
    """Where the node's engines can put a container."""

    def parent(self, engine: Engine, path: str) -> str | None:
        """Its ``--cgroup-parent`` for a container in the cgroup *path*; None: it cannot lie there."""


class Ending(Protocol):
    """How containers end: see `stopping`."""

    def advance(
        self, lease: int, held: Container | None, *, in_cgroup: bool, guest: int | None = None
    ) -> Evidence | Pending: ...


class ContainerDoor:
    """Plans what the lease of a container needs. *why_not*: why there is none here."""

    at_best = Hold()

    def __init__(self, why_not: Callable[[], str | None]) -> None:
        self._why_not = why_not

    def tier(self) -> Tier:
        why = self._why_not()
        return Tier(CONTAINER, why is None, why or "a lease can be a container's, of docker or podman")

    def promise(self, setting: Setting) -> Hold:
        return Hold()

    def closed(self, setting: Setting) -> str | None:
        if setting.container is None:
            return None
        if why := self._why_not():
            return f"{CONTAINER}: {why}"
        return no_node(setting.placed, setting.inventory)

    def plan(self, lease_id: int, setting: Setting) -> Sequence[Planned]:
        if setting.container is None or self.closed(setting):
            return []
        minors = render_minors(setting.placed, setting.inventory)
        engine = setting.container.engine
        return [Planned(CONTAINER, {"lease": lease_id, "engine": engine, "render_minors": minors})]


class ContainerEffect:
    """The note and the ticket of a lease's container, and what its engine is to be told to start it.

    *bound* says which container is a lease's.
    """

    def __init__(
        self,
        admission: Admission,
        parents: Parents,
        stopping: Ending,
        bound: Callable[[int], Container | None],
    ) -> None:
        self._admission = admission
        self._parents = parents
        self._stopping = stopping
        self._bound = bound

    def apply(self, arguments: Arguments) -> Evidence:
        return {"mounts": [self._admission.prepare(int(arguments["lease"]))]}

    def verify(self, arguments: Arguments, evidence: Evidence) -> Evidence:
        self._admission.files.verify(int(arguments["lease"]))
        return {}

    def conclude(self, arguments: Arguments, before: Sequence[Done]) -> Evidence:
        lease, engine = int(arguments["lease"]), Engine(arguments["engine"])
        cgroup = evidence_of(before, CGROUP)
        parent = self._parents.parent(engine, str(cgroup["path"])) if cgroup else None
        mounts = [*mounts_of(before), self._admission.mount(lease)]
        return self._admission.let_in(lease, parent, arguments["render_minors"], mounts, profile_of(before))

    def undo(self, arguments: Arguments, evidence: Evidence) -> Evidence | Pending:
        """What is to be mounted goes first: so no engine starts a container that is being ended."""
        lease = int(arguments["lease"])
        self._admission.files.remove(lease)
        in_cgroup = evidence.get("cgroup_parent") is not None
        return self._stopping.advance(lease, self._bound(lease), in_cgroup=in_cgroup)


def no_node(placed: Sequence[PlacedSlice], inventory: Inventory) -> str | None:
    """Why no container can have these slices, or None."""
    missing = [one.device for one in placed if _minor(one, inventory) is None]
    return f"{CONTAINER}: {', '.join(missing)}: no render node to give to it" if missing else None


def render_minors(placed: Sequence[PlacedSlice], inventory: Inventory) -> list[int]:
    """The numbers of their render nodes; of each device that has one."""
    return [minor for one in placed if (minor := _minor(one, inventory)) is not None]


def _minor(placed: PlacedSlice, inventory: Inventory) -> int | None:
    device = inventory.device(placed.device)
    return None if device is None else device.render_minor
