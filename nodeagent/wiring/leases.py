"""Builds the use cases of a lease's life: booked, granted, entered, launched in, released."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.domain.clock import Clock
from nodeagent.domain.lease import Lease
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.anchoring import Anchors
from nodeagent.service.attach import Attacher
from nodeagent.service.booking import Booker
from nodeagent.service.changes import Changes
from nodeagent.service.classes import Classes
from nodeagent.service.effects import Journal
from nodeagent.service.enforcement import Enforcement
from nodeagent.service.grant import Granter
from nodeagent.service.launch import Launcher
from nodeagent.service.locks import LeaseLocks
from nodeagent.service.measuring import Measuring
from nodeagent.service.nesting import Nesting
from nodeagent.service.observing import Observing
from nodeagent.service.placing import Placer
from nodeagent.service.plan import Planner
from nodeagent.service.queue import Queue
from nodeagent.service.quotas import Quotas
from nodeagent.service.release import Releaser
from nodeagent.service.survey import Survey
from nodeagent.wiring.tiers import Tiers


@dataclass(frozen=True, slots=True)
class Base:
    """What nearly every use case is built with; *tree* is None where no cgroups can be made."""

    ledger: Ledger
    clock: Clock
    tree: CgroupTree | None
    survey: Survey
    anchors: Anchors
    quotas: Quotas
    enforcement: Enforcement
    classes: Classes = field(default_factory=Classes)
    changes: Changes = field(default_factory=Changes)
    locks: LeaseLocks = field(default_factory=LeaseLocks)


@dataclass(frozen=True, slots=True)
class Leases:
    """The use cases, and the *journal* of what they do to the node."""

    journal: Journal
    nesting: Nesting
    planner: Planner
    granter: Granter
    queue: Queue
    attacher: Attacher
    launcher: Launcher
    releaser: Releaser
    observing: Observing


def build_leases(
    base: Base,
    tiers: Tiers,
    planner: Planner,
    *,
    in_use: Callable[[int], bool],
    keep: Callable[[int], None],
    shared_cu_percent: float,
    timeout_seconds: float,
    measuring: Measuring,
    keep_seconds: float = 3600.0,
) -> Leases:
    """The use cases over *tiers*. *in_use*: whether a process has a GPU open; *keep*: a lease's sidecar."""
    ledger, tree, survey, locks, changes = base.ledger, base.tree, base.survey, base.locks, base.changes
    anchors, quotas = base.anchors, base.quotas
    entered = tiers.shared_memory.census.enter if tiers.shared_memory else lambda lease, pid: None
    journal = Journal(ledger, tiers.effects)
    placer = Placer(planner, shared_cu_percent, survey.switches.closed)
    nesting = Nesting(ledger, base.clock, tree)
    observing = Observing(ledger, base.enforcement)
    groups_of = quotas.rules.members.of
    queue = Queue(ledger, base.clock, survey, quotas.owner_of, shared_cu_percent, keep_seconds, groups_of)
    booker = Booker(
        ledger,
        base.clock,
        survey,
        anchors,
        quotas,
        planner,
        placer,
        nesting,
        observing,
        queue,
        base.classes,
    )

    def latest_ns(lease: Lease) -> int | None:
        found = (queue.latest_ns(lease), base.classes.latest_ns(lease))
        return min((one for one in found if one is not None), default=None)

    releaser = Releaser(
        ledger,
        journal,
        locks,
        changes,
        timeout_seconds,
        survey.away,
        tiers.obstacles.gather,
        measuring.releases.observe,
    )
    granted = measuring.grants.observe
    return Leases(
        journal,
        nesting,
        planner,
        Granter(ledger, survey, anchors, booker, planner, journal, releaser, locks, changes, keep, granted),
        queue,
        Attacher(
            ledger,
            tree,
            planner,
            anchors,
            quotas,
            locks,
            changes,
            in_use,
            entered,
            keep,
            latest_ns,
        ),
        Launcher(ledger, tree, tiers.supervisor, anchors, quotas, locks, changes, entered, keep),
        releaser,
        observing,
    )
