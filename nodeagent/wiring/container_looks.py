"""Builds what looks at containers while the agent runs, and what lets them into leases that are there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nodeagent.domain.container import Engine
from nodeagent.service.bearers import Bearers
from nodeagent.service.container_view import ContainerViews
from nodeagent.service.containers import Containers, Wanted
from nodeagent.service.gathering import Gathering
from nodeagent.service.guests import Guests
from nodeagent.service.hosting import Hosting
from nodeagent.wiring.containers import Dock
from nodeagent.wiring.leases import Base, Leases
from nodeagent.wiring.tiers import Tiers


@dataclass(frozen=True, slots=True)
class ContainerUses:
    """The use cases of containers, beside those of their leases."""

    looks: Containers
    guests: Guests
    hosting: Hosting
    views: ContainerViews


def build_container_uses(
    dock: Dock,
    base: Base,
    tiers: Tiers,
    leases: Leases,
    watches: Mapping[Engine, Wanted],
    keep: Callable[[int], None],
) -> ContainerUses:
    """*keep* is told of each lease that has changed."""
    ledger, locks, changes = base.ledger, base.locks, base.changes
    bearers, views = Bearers(ledger, dock.engines), dock.views(ledger)
    guests = Guests(
        ledger, base.clock, bearers, dock.files, dock.mounts, leases.journal, locks, changes, keep
    )
    hosting = Hosting(
        ledger,
        base.survey,
        base.anchors,
        leases.nesting,
        leases.planner,
        base.quotas,
        leases.journal,
        guests,
        views,
        dock.engines,
        locks,
        changes,
        tiers.beside_guests,
        keep,
    )
    gathering = Gathering(ledger, dock.engines, dock.mounts, base.tree)
    looks = Containers(
        ledger, bearers, base.anchors, dock.files, watches, gathering, guests, locks, changes, keep
    )
    return ContainerUses(looks, guests, hosting, views)
