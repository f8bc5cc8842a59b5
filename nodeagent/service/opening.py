"""Opens what the agent holds closed, from the records that it left: for a bypass while no agent answers.

Each part is tried, whatever became of the others; all of it again is harmless. The agent closes everything
anew once the bypass is over: by its looks, from its ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.closure import OutsideCgroups
from nodeagent.adapters.dmem import DmemController
from nodeagent.adapters.gate_record import GateRecord
from nodeagent.domain.errors import AgentError
from nodeagent.ledger.queries import Queries
from nodeagent.service.cgroup_effects import DMEM
from nodeagent.service.lifting import lift_all, lift_cgroup


class Opening:
    """*tree* and *dmem* are None where there is no cgroup2 mount, *outside* where nothing can be limited."""

    def __init__(
        self,
        tree: CgroupTree | None,
        dmem: DmemController | None,
        outside: OutsideCgroups | None,
        gate: GateRecord,
        ledger: Queries,
    ) -> None:
        self._tree = tree
        self._dmem = dmem
        self._outside = outside
        self._gate = gate
        self._ledger = ledger

    def open(self) -> Mapping[str, str]:
        """What was done, by what it was done to; a fault is said in its place."""
        parts: dict[str, Callable[[], str]] = {
            "limits outside leases": self._open_outside,
            "limits of leases": self._lift,
            "limits of jobs": self._lift_recorded,
            "device nodes": lambda: f"{self._gate.restore()} as they were before the gate",
        }
        return {name: _said(part) for name, part in parts.items()}

    def _open_outside(self) -> str:
        if self._outside is None:
            return "none: no dmem here"
        count = self._outside.count()
        self._outside.release()
        return f"{count} taken back"

    def _lift(self) -> str:
        if self._tree is None or self._dmem is None:
            return "none: no dmem here"
        refs = {**self._tree.nested(), **self._tree.existing()}
        return f"{sum(lift_cgroup(self._dmem, ref) for ref in refs.values())} lifted"

    def _lift_recorded(self) -> str:
        if self._dmem is None:
            return "none: no dmem here"
        journals = self._ledger.journals([lease.id for lease in self._ledger.live()], (DMEM,)).values()
        return f"{lift_all(self._dmem, [one for journal in journals for one in journal])} lifted"


def _said(part: Callable[[], str]) -> str:
    try:
        return part()
    except (AgentError, OSError) as fault:
        return f"FAILED: {fault}"
