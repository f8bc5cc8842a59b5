"""What a lease's programs leave in shared memory goes with the lease, by proof; what stays is told.

It holds no GPU, so it never holds up a release.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.guarantee import Hold, Ipc
from nodeagent.domain.ipc import Verdict
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.census import Census
from nodeagent.service.cgroup_effects import ref_of
from nodeagent.service.effects import Arguments, Effect, Evidence, Pending, Planned
from nodeagent.service.means import Setting
from nodeagent.service.orders import Tier
from nodeagent.service.shared_memory import IPC, SharedMemory, described

log = structlog.get_logger()

MOST_NAMED = 16  # objects in one lease's evidence, which is kept for as long as the lease
MOST_TOLD = 8  # in one line
_REMEMBERED = 1024


class IpcMeans:
    """Plans the effect for leases whose processes are the agent's to tell, unless there is a *why_not*."""

    at_best = Hold()

    def __init__(self, why_not: str | None = None) -> None:
        self._why_not = why_not

    def tier(self) -> Tier:
        there = self._why_not is None
        return Tier(IPC, there, self._why_not or "what is provably left in shared memory goes")

    def promise(self, setting: Setting) -> Hold:
        return Hold()

    def plan(self, lease_id: int, setting: Setting) -> Sequence[Planned]:
        if self._why_not is not None or setting.cgroup is None or setting.adopted:
            return []
        if setting.demanded.ipc is Ipc.PRIVATE:  # nothing of such a lease is in the node's
            return []
        return [Planned(IPC, {**setting.cgroup, "uid": setting.uid})]


class IpcEffect:
    """Writes down what the uid had before, and removes what the lease alone can have made."""

    def __init__(self, ledger: Ledger, shared_memory: SharedMemory) -> None:
        self._ledger = ledger
        self._shared_memory = shared_memory
        # The walk back comes here again while something below waits; what was told once is enough.
        self._done: dict[int, Evidence] = {}

    def apply(self, arguments: Arguments) -> Evidence:
        return self._shared_memory.begin(arguments)

    def verify(self, arguments: Arguments, evidence: Evidence) -> Evidence:
        return {}

    def undo(self, arguments: Arguments, evidence: Evidence) -> Evidence | Pending:
        lease = int(arguments["lease"])
        if "since_ns" not in evidence:
            return {"removed": 0, "left": 0}  # nobody could enter yet
        if lease not in self._done:
            while len(self._done) >= _REMEMBERED:
                del self._done[next(iter(self._done))]
            self._done[lease] = self._clear(lease, arguments, evidence)
        return self._done[lease]

    def _clear(self, lease: int, arguments: Arguments, evidence: Evidence) -> Evidence:
        try:
            verdicts = self._shared_memory.clear(lease, int(arguments["uid"]), evidence)
        except (OutsideFault, OSError) as fault:
            self._tell(lease, (), str(fault))
            return {"fault": str(fault)}
        removed, left = [one for one in verdicts if one.removes], [one for one in verdicts if one.in_doubt]
        self._tell(lease, removed, _line(left) if left else None)
        named = [described(one) for one in (*removed, *left)[:MOST_NAMED]]
        return {"objects": named, "removed": len(removed), "left": len(left), "before": None}

    def _tell(self, lease: int, removed: Sequence[Verdict], left: str | None) -> None:
        if not removed and left is None:
            return
        with self._ledger.write(release=True) as tx:
            if removed:
                tx.event("ipc_removed", uid=None, lease=lease, reason=_line(removed))
            if left is not None:
                tx.event("ipc_left", uid=None, lease=lease, reason=left)


class Counted:
    """*effect*, which ends a lease's processes: they are counted right before."""

    def __init__(self, effect: Effect, census: Census) -> None:
        self._effect = effect
        self._census = census

    def apply(self, arguments: Arguments) -> Evidence:
        return self._effect.apply(arguments)

    def verify(self, arguments: Arguments, evidence: Evidence) -> Evidence:
        return self._effect.verify(arguments, evidence)

    def undo(self, arguments: Arguments, evidence: Evidence) -> Evidence | Pending:
        ref = ref_of(evidence)
        if ref is not None:
            try:
                self._census.see(int(arguments["lease"]), ref, closely=True)
            except (OutsideFault, OSError) as fault:
                log.info("a lease's processes cannot be counted", lease=arguments["lease"], why=str(fault))
        return self._effect.undo(arguments, evidence)


def _line(verdicts: Sequence[Verdict]) -> str:
    told = [f"{one.found.kind} {one.found.shown[:64]}: {one.detail}" for one in verdicts[:MOST_TOLD]]
    more = len(verdicts) - len(told)
    return "; ".join(told) + (f"; and {more} more" if more else "")
