"""Builds what looks at containers while the agent runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nodeagent.domain.container import Engine
from nodeagent.service.bearers import Bearers
from nodeagent.service.containers import Containers, Wanted
from nodeagent.service.gathering import Gathering
from nodeagent.wiring.containers import Dock
from nodeagent.wiring.leases import Base


def build_container_looks(
    dock: Dock, base: Base, watches: Mapping[Engine, Wanted], keep: Callable[[int], None]
) -> Containers:
    """*keep* is told of each lease that has changed."""
    return Containers(
        base.ledger,
        Bearers(base.ledger, dock.engines),
        base.anchors,
        dock.files,
        watches,
        Gathering(base.ledger, dock.engines, dock.mounts, base.tree),
        base.locks,
        base.changes,
        keep,
    )
