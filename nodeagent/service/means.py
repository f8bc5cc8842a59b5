"""Means: each way to hold a lease, behind one protocol. A new tier is a new means; no use case lists them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nodeagent.domain.container import Container
from nodeagent.domain.device import Inventory
from nodeagent.domain.guarantee import Compute, Hold, Ipc, Memory, Queues, Requirement, Visibility
from nodeagent.domain.lease import PlacedSlice
from nodeagent.domain.records import EffectRecord
from nodeagent.domain.request import Priority
from nodeagent.service.effects import Done, Planned
from nodeagent.service.orders import Tier


@dataclass(frozen=True, slots=True)
class Setting:
    """What a lease is about to be given, for a means to say what it adds.

    *cgroup* is ``{"lease": id, "parent": path or None}``, as `CgroupTree.find` takes it, for a job's own with
    its ``"name"`` (see `job_effects`); None where the lease has none: an *adopted* one, or without cgroup2.
    *container*: what it was taken for, where that is one.
    """

    uid: int
    demanded: Requirement  # by the request and by the site
    cgroup: Mapping[str, Any] | None
    adopted: bool  # what it holds runs already, with whatever it has loaded and allocated
    placed: tuple[PlacedSlice, ...]
    inventory: Inventory
    cdi: bool = False  # containers are given the lease as a CDI device
    container: Container | None = None
    queue_priority: Priority = Priority.NORMAL


class Means(Protocol):
    """One way to hold leases. What it promises is stated of a lease only once its effect's evidence says so.

    An effect that holds something says so in its evidence, as verified: ``{"holds": {"memory": "hook"}}``;
    what the workload needs for it is there too: ``{"environment": {NAME: value or None}}``, and what is to be
    mounted into its containers: ``{"mounts": [{"source": path, "target": path, "read_only": bool}]}``.
    """

    at_best: Hold  # of any lease, on any node; empty for what holds nothing

    def tier(self) -> Tier:
        """Whether this node has it, and why not."""

    def promise(self, setting: Setting) -> Hold:
        """What it would hold of such a lease; an empty Hold where it does not apply. Changes nothing."""

    def plan(self, lease_id: int, setting: Setting) -> Sequence[Planned]:
        """The effects for the lease's journal, in order; none where it does not apply."""


class Door(Means, Protocol):
    """A way into leases, on demand. It is shut before those who are in are ended."""

    def closed(self, setting: Setting) -> str | None:
        """Why such a lease cannot have it, though it is demanded; None also where nobody demands it."""


def why_not(means: Means, setting: Setting) -> str:
    """Why *means* holds nothing of such a lease, for whoever demands it."""
    tier = means.tier()
    if not tier.present:
        return f"{tier.name}: {tier.why}"
    if setting.adopted:
        return f"{tier.name}: not of what runs already"
    if setting.container is not None:
        return f"{tier.name}: not of such a container ({tier.why})"
    if setting.cgroup is None:
        return f"{tier.name}: not of a lease without a cgroup"
    return f"{tier.name}: not of such a lease ({tier.why})"


def holds_of(done: Sequence[Done]) -> tuple[Hold, ...]:
    """What the walked effects say they hold, as verified."""
    return tuple(_hold(one.evidence["holds"]) for one in done if "holds" in one.evidence)


def environment_of(done: Sequence[Done]) -> dict[str, str | None]:
    """What the walked effects put into the workload's environment."""
    merged: dict[str, str | None] = {}
    for one in done:
        merged |= one.evidence.get("environment", {})
    return merged


def mounts_of(journal: Iterable[Done | EffectRecord]) -> list[Mapping[str, Any]]:
    """What the walked effects want mounted into the lease's containers: source, target, read_only."""
    evidences: Iterable[Mapping[str, Any]] = (one.evidence or {} for one in journal)
    return [mount for evidence in evidences for mount in evidence.get("mounts", ())]


def _hold(said: Mapping[str, str]) -> Hold:
    return Hold(
        memory=Memory(said["memory"]) if "memory" in said else None,
        compute=Compute(said["compute"]) if "compute" in said else None,
        visibility=Visibility(said["visibility"]) if "visibility" in said else None,
        ipc=Ipc(said["ipc"]) if "ipc" in said else None,
        queues=Queues(said["queues"]) if "queues" in said else None,
    )
