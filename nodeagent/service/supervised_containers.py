"""The supervised tier of containers: their runtime hands each process's system calls to a supervisor.

Where it is demanded, and where a container's programs cannot load the hook and the kernel does not hold them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.container_files import ContainerFiles
from nodeagent.adapters.supervisor import Attendance, Supervisor
from nodeagent.domain import seccomp
from nodeagent.domain.container import Engine, loading_of
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.guarantee import Hold, Memory, Queues
from nodeagent.domain.records import EffectRecord, EffectState
from nodeagent.service.cgroup_effects import find
from nodeagent.service.charging import chargeable, charged, devices_of, queues_held
from nodeagent.service.effects import Arguments, Done, Evidence, Pending, Planned
from nodeagent.service.means import Means, Setting
from nodeagent.service.orders import Tier
from nodeagent.service.supervised import HOME

SUPERVISED_CONTAINERS = "supervised_containers"


def profile_of(journal: Iterable[Done | EffectRecord]) -> dict[str, Any] | None:
    """The seccomp profile that the containers of a lease are to be started with; None: their engine's own."""
    for one in journal:
        record = one.record if isinstance(one, Done) else one
        if record.kind == SUPERVISED_CONTAINERS and one.state is EffectState.VERIFIED and one.evidence:
            return seccomp.profile(str(one.evidence["listener"]))
    return None


class SupervisedContainers:
    """Plans the tier: a door, since a runtime comes by its socket. *kernel*: what makes it needless.

    *no_listener* says why an engine cannot do its part.
    """

    at_best = Hold(memory=Memory.SUPERVISED)

    def __init__(
        self, supervisor: Supervisor, no_listener: Callable[[Engine], str | None], kernel: Means
    ) -> None:
        self._supervisor = supervisor
        self._no_listener = no_listener
        self._kernel = kernel

    def tier(self) -> Tier:
        why = self._supervisor.unavailable()
        stated = "a process of root's is asked about each allocation of containers that cannot load the hook"
        return Tier(SUPERVISED_CONTAINERS, why is None, why or stated)

    def promise(self, setting: Setting) -> Hold:
        return self.at_best if self._applies(setting) else Hold()

    def plan(self, lease_id: int, setting: Setting) -> Sequence[Planned]:
        if setting.cgroup is None or not self._applies(setting):
            return []
        arguments = {**setting.cgroup, "lease": lease_id, **charged(setting)}
        return [Planned(SUPERVISED_CONTAINERS, arguments)]

    def closed(self, setting: Setting) -> str | None:
        if setting.demanded.memory is not Memory.SUPERVISED or not self._wanted(setting):
            return None
        why = self._why_not(setting)
        return why and f"{SUPERVISED_CONTAINERS}: {why}"

    def _applies(self, setting: Setting) -> bool:
        return self._wanted(setting) and self._why_not(setting) is None

    def _wanted(self, setting: Setting) -> bool:
        if setting.container is None or setting.cdi:
            return False
        if self._kernel.promise(setting).memory is Memory.KERNEL:
            return False
        demanded = setting.demanded.memory is Memory.SUPERVISED
        return demanded or not loading_of(setting.container.libc).possible

    def _why_not(self, setting: Setting) -> str | None:
        if setting.container is None or (why := self._supervisor.unavailable()):
            return why
        if why := self._no_listener(setting.container.engine):
            return why
        if setting.cgroup is None:
            return "the engine keeps its containers in cgroups of version 1, so who asks cannot be told"
        return None if chargeable(setting) else "a device of it has no number that a request names"


class SupervisedContainersEffect:
    """The supervisor of a lease's containers, and the socket where their runtimes find it.

    A supervisor that died is not started again: what it knew of the lease's memory is lost, so it stays shut.
    """

    def __init__(self, supervisor: Supervisor, files: ContainerFiles, tree: CgroupTree) -> None:
        self._supervisor = supervisor
        self._files = files
        self._tree = tree

    def apply(self, arguments: Arguments) -> Evidence:
        lease, ref = int(arguments["lease"]), find(self._tree, arguments)
        if ref is None:
            raise OutsideFault(f"lease {lease}", "has no cgroup by which its containers could be told")
        listener = self._files.listener(lease)
        with self._tree.open(self._tree.scratch(HOME)) as home:
            devices = tuple(devices_of(arguments))
            self._supervisor.attend(Attendance(lease, devices, ref.path, home.fileno(), listener))
        return {"listener": str(listener)}

    def verify(self, arguments: Arguments, evidence: Evidence) -> Evidence:
        listener = self._files.listener(int(arguments["lease"]))
        if not self._supervisor.attends(listener):
            raise OutsideFault(listener, "no supervisor listens there")
        return {"holds": {"memory": Memory.SUPERVISED, **queues_held(arguments, Queues.SUPERVISED)}}

    def undo(self, arguments: Arguments, evidence: Evidence) -> Evidence | Pending:
        """No runtime comes in any more; the supervisor ends with the last process that it is asked about."""
        self._files.shut(int(arguments["lease"]))
        return {"supervisor": "ends with its last process"}
