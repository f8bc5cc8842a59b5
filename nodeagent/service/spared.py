"""Whoever is in a lease that ends stays alive while the agent is bypassed: the lease waits for them."""

from __future__ import annotations

from collections.abc import Callable

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.service.cgroup_effects import recorded
from nodeagent.service.effects import Arguments, Effect, Evidence, Pending

SPARED = "ended by nobody while `nodeagent bypass` is on"


class Spared(Effect):
    """*effect*, whose undo ends those in a lease's cgroup: not while *spared* says so."""

    def __init__(self, effect: Effect, tree: CgroupTree, spared: Callable[[], bool]) -> None:
        self._effect = effect
        self._tree = tree
        self._spared = spared

    def apply(self, arguments: Arguments) -> Evidence:
        return self._effect.apply(arguments)

    def verify(self, arguments: Arguments, evidence: Evidence) -> Evidence:
        return self._effect.verify(arguments, evidence)

    def undo(self, arguments: Arguments, evidence: Evidence) -> Evidence | Pending:
        if self._spared():
            ref = recorded(self._tree, arguments, evidence)
            if ref is not None and self._tree.populated(ref):
                return Pending(f"{ref.path}: {SPARED}", patient=True, alive=True)
        return self._effect.undo(arguments, evidence)
