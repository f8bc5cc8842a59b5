"""What finds idle leases."""

from __future__ import annotations

from nodeagent import config as settings
from nodeagent.adapters.kfd_usage import PROC
from nodeagent.domain.lease import HolderKind
from nodeagent.service.idle import IdleLeases, IdlePolicy
from nodeagent.service.measuring import Measuring
from nodeagent.service.sampling import Sources
from nodeagent.wiring.leases import Base, Leases
from nodeagent.wiring.node import Node


def idle_policy(config: settings.Config) -> IdlePolicy:
    """When a lease is idle, and what becomes of it."""
    idle = config.idle
    exempt = frozenset(HolderKind(kind) for kind in idle.exempt)
    return IdlePolicy(idle.after_seconds, idle.action == "release", idle.warn_seconds, exempt)


def build_idle(
    policy: IdlePolicy, node: Node, base: Base, leases: Leases, sources: Sources, measuring: Measuring
) -> IdleLeases:
    """Without KFD's counters, as on a simulated node, no lease's work is seen, so none is idle."""
    return IdleLeases(
        base.ledger,
        base.clock,
        base.changes,
        leases.releaser,
        sources.sdma_us,
        policy,
        measured=lambda: node.tree.exists(PROC),
        spared=base.enforcement.bypassed,
        known=measuring.note_idle,
    )
