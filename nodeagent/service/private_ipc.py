"""Shared memory of a lease's own: the agent starts its one command in an IPC namespace with a /dev/shm in it.

Only for leases that demand it. Programs that work together by shared memory may each have a lease, as the
ranks of an MPI job do, and would not find each other.
"""

from __future__ import annotations

from collections.abc import Sequence

from nodeagent.adapters.supervisor import Supervisor
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.guarantee import Hold, Ipc
from nodeagent.service.effects import Arguments, Evidence, Pending, Planned
from nodeagent.service.job_effects import in_job
from nodeagent.service.means import Setting
from nodeagent.service.orders import Tier

PRIVATE_IPC = "private_ipc"


class PrivateIpcMeans:
    """Plans it where it is demanded and can be had."""

    at_best = Hold(ipc=Ipc.PRIVATE)

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def tier(self) -> Tier:
        why = self._supervisor.no_private_ipc()
        return Tier(
            PRIVATE_IPC,
            why is None,
            why or "a command has an IPC namespace and a /dev/shm of its own, on demand",
        )

    def promise(self, setting: Setting) -> Hold:
        return self.at_best if self._applies(setting) else Hold()

    def plan(self, lease_id: int, setting: Setting) -> Sequence[Planned]:
        return [Planned(PRIVATE_IPC, {"lease": lease_id})] if self._applies(setting) else []

    def _applies(self, setting: Setting) -> bool:
        if setting.demanded.ipc is not Ipc.PRIVATE or setting.cgroup is None:
            return False
        if in_job(setting.cgroup) or setting.container:  # Slurm, or an engine, starts what runs in there
            return False
        return self._supervisor.no_private_ipc() is None


class PrivateIpcEffect:
    """The promise that the lease's command is started in there, and nothing enters the lease otherwise.

    Nothing is to be undone: namespace, mount and all that is in them end with the lease's last process.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def apply(self, arguments: Arguments) -> Evidence:
        return {}

    def verify(self, arguments: Arguments, evidence: Evidence) -> Evidence:
        if why := self._supervisor.no_private_ipc():
            raise OutsideFault("private_ipc", why)
        return {"holds": {"ipc": Ipc.PRIVATE}}

    def undo(self, arguments: Arguments, evidence: Evidence) -> Evidence | Pending:
        return {"private_ipc": "ended with its last process"}
