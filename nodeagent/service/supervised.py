"""The supervised tier: a root process that the kernel asks about each allocation of the lease's one command.

Only for leases that demand it, since nothing else may enter such a lease (threat 19): what the agent did not
start under the filter is not held.
"""

from __future__ import annotations

from collections.abc import Sequence

from nodeagent.adapters.supervisor import Supervisor
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.guarantee import Hold, Memory, Queues
from nodeagent.service.charging import chargeable, charged, queues_held
from nodeagent.service.effects import Arguments, Evidence, Pending, Planned
from nodeagent.service.job_effects import in_job
from nodeagent.service.means import Setting
from nodeagent.service.orders import Tier

SUPERVISED = "supervised"
HOME = "supervisor"  # the cgroup of all supervisors: not the agent's, whose end they survive


class SupervisedMeans:
    """Plans the tier where it is demanded and can be had. *supervisor* is None where it is turned off."""

    at_best = Hold(memory=Memory.SUPERVISED)

    def __init__(self, supervisor: Supervisor | None) -> None:
        self._supervisor = supervisor

    def tier(self) -> Tier:
        why = self._unavailable()
        return Tier(
            "supervised", why is None, why or "a process of root's is asked about each allocation, on demand"
        )

    def promise(self, setting: Setting) -> Hold:
        return self.at_best if self._applies(setting) else Hold()

    def plan(self, lease_id: int, setting: Setting) -> Sequence[Planned]:
        if not self._applies(setting):
            return []
        return [Planned(SUPERVISED, {"lease": lease_id, **charged(setting)})]

    def _applies(self, setting: Setting) -> bool:
        if setting.demanded.memory is not Memory.SUPERVISED or setting.cgroup is None:
            return False
        if in_job(setting.cgroup) or setting.container:  # Slurm, or an engine, starts what runs in there
            return False
        return chargeable(setting) and self._unavailable() is None

    def _unavailable(self) -> str | None:
        return "turned off" if self._supervisor is None else self._supervisor.unavailable()


class SupervisedEffect:
    """The promise that the lease's command is started under a supervisor, and nothing enters otherwise.

    Nothing is to be undone: the supervisor ends with the last process that it supervises.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def apply(self, arguments: Arguments) -> Evidence:
        return {}

    def verify(self, arguments: Arguments, evidence: Evidence) -> Evidence:
        if why := self._supervisor.unavailable():
            raise OutsideFault("supervisor", why)
        return {"holds": {"memory": Memory.SUPERVISED, **queues_held(arguments, Queues.SUPERVISED)}}

    def undo(self, arguments: Arguments, evidence: Evidence) -> Evidence | Pending:
        return {"supervisor": "ends with its last process"}
