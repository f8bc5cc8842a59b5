"""Tasks of jobs: let into the job's lease before their program starts, and told its environment."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.peer import Peer
from nodeagent.adapters.slurm import task_of
from nodeagent.domain.errors import NotAllowed
from nodeagent.domain.lease import Lease
from nodeagent.domain.slurm import gpus_of, node_of
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.attach import Attacher
from nodeagent.service.cgroup_effects import CGROUP, find
from nodeagent.service.job_cgroups import JobCgroups
from nodeagent.service.job_effects import in_job
from nodeagent.service.job_leases import JobLeases
from nodeagent.service.orders import Caller
from nodeagent.service.rights import owns_nothing

NONE = ("none",)
OBSERVED = ("export GPULEASE_MODE=observe",)  # no variable that the scripts set: the task starts as it is
# Slurm's TaskProlog takes what stands behind the first "=" for the value, to the end of the line.
_VALUE = re.compile(r"[A-Za-z0-9,.:;/_-]*", re.ASCII)
_INDEXES = re.compile(r"[0-9]{1,4}(,[0-9]{1,4})*", re.ASCII)
_EXPORTED = frozenset(
    {
        "ROCR_VISIBLE_DEVICES",
        "HSA_CU_MASK",
        "GPU_MAX_HW_QUEUES",
        "GPULEASE_ID",
        "GPULEASE_VRAM_BYTES",
        "GPULEASE_DEVICES",
        "GPULEASE_HOOK",
        "LD_PRELOAD",
    }
)
_UNSET = frozenset(
    {
        "HIP_VISIBLE_DEVICES",
        "CUDA_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL",
        "ROC_GLOBAL_CU_MASK",
        "HSA_CU_MASK_SKIP_INIT",
        "HSA_CU_MASK",
    }
)


class Tasks:
    """Finds the lease of the task that asks: by its cgroup, which Slurm put it in; else among its user's."""

    def __init__(
        self,
        ledger: Ledger,
        tree: CgroupTree | None,
        leases: JobLeases,
        cgroups: JobCgroups,
        attacher: Attacher,
        constrained: Callable[[], bool] = lambda: False,
        numbered: Callable[[str | None, Sequence[int]], Collection[str]] = lambda node, numbers: (),
    ) -> None:
        self._ledger = ledger
        self._tree = tree
        self._leases = leases
        self._cgroups = cgroups
        self._attacher = attacher
        self._constrained = constrained  # whether Slurm closes other GPUs to a task, which renumbers its own
        self._numbered = numbered  # the devices that Slurm calls so, on the node of a name

    def enter(self, caller: Caller, told: Mapping[str, str]) -> tuple[str, ...]:
        """Have the caller's task in its job's lease; the lines that its task-prolog prints.

        *told* is the task-prolog's word for which of its user's jobs it is: a hint.

        Raises:
            NotAllowed: it is no task, or not where its job's limits hold.
            OutsideFault: its job's limits are not in place.
        """
        if owns_nothing(caller):
            raise NotAllowed("root of another namespace has no jobs here")
        mine = self._leases.active_of(caller.uid)
        confined = {lease.id: path for lease in mine if (path := self._job_cgroup(lease)) is not None}
        here = self._tree.cgroup_of(caller.pid) if self._tree else None
        lease = next((one for one in mine if _within(here, confined.get(one.id))), None)
        if lease is not None:
            self._cgroups.keep(lease)
            return self._told(lease, told)
        lease = _hinted(mine, told)
        if lease is None:
            return NONE
        if lease.id in confined:
            raise NotAllowed(f"lease {lease.id} holds {confined[lease.id]}, and this task is not in there")
        if lease.observed:
            return OBSERVED
        self._bring(caller, lease)
        return self._told(lease, told)

    def _told(self, lease: Lease, told: Mapping[str, str]) -> tuple[str, ...]:
        environment = dict(lease.environment or {})
        visible = environment.get("ROCR_VISIBLE_DEVICES") or ""
        if not environment.get("HSA_CU_MASK"):
            environment["ROCR_VISIBLE_DEVICES"] = visible = self._of_task(visible, lease, told)
        if _INDEXES.fullmatch(visible) and self._constrained():
            environment["ROCR_VISIBLE_DEVICES"] = _renumbered(visible)
        theirs = told.get("LD_PRELOAD", "")
        if theirs and environment.get("LD_PRELOAD") and _VALUE.fullmatch(theirs):
            environment["LD_PRELOAD"] = f"{environment['LD_PRELOAD']}:{theirs}"
        return tuple(_lines(environment))

    def _of_task(self, visible: str, lease: Lease, told: Mapping[str, str]) -> str:
        """Those of the *visible* devices of whole GPUs that Slurm gave this task of the job."""
        numbers, each = gpus_of(told, "SLURM_STEP_GPUS"), visible.split(",")
        if len(numbers) >= len(each) or len(each) != len(lease.slices):
            return visible
        devices = self._numbered(node_of(told), numbers)
        given = [one for one, held in zip(each, lease.slices, strict=True) if held.placed.device in devices]
        return ",".join(given) if len(given) == len(numbers) > 0 else visible

    def _job_cgroup(self, lease: Lease) -> str | None:
        """The path of the job's own cgroup, where the lease is held by that."""
        for one in self._ledger.effects(lease.id) if self._tree else ():
            if one.kind == CGROUP and in_job(one.arguments) and self._tree is not None:
                ref = find(self._tree, one.arguments)
                return ref.path if ref else f"{one.arguments['parent']}/{one.arguments['name']}"
        return None

    def _bring(self, caller: Caller, lease: Lease) -> None:
        peer = Peer(caller.pid, caller.uid, caller.gid, tuple(caller.groups), caller.pidfd)
        task = task_of(peer)
        try:
            leaves = self._tree.cgroup_of(task.stepd) if self._tree else None
            self._attacher.bring(lease.id, task.process, leaves)
        finally:
            task.process.close()


def _within(path: str | None, cgroup: str | None) -> bool:
    return path is not None and cgroup is not None and f"{path}/".startswith(f"{cgroup}/")


def _hinted(mine: tuple[Lease, ...], told: Mapping[str, str]) -> Lease | None:
    """The job that the task says it is of; the only one where that has no lease, as a part of a het job."""
    named = {told.get("SLURM_JOB_ID"), told.get("SLURM_HET_JOB_ID")}
    found = [lease for lease in mine if lease.holder.id in named]
    if not found and told.get("SLURM_HET_JOB_ID"):
        found = list(mine)
    return found[0] if len(found) == 1 else None


def _renumbered(indexes: str) -> str:
    """ROCr's *indexes* of devices as it counts them where the node's other devices are closed."""
    numbers = [int(index) for index in indexes.split(",")]
    ranks = {number: str(rank) for rank, number in enumerate(sorted(set(numbers)))}
    return ",".join(ranks[number] for number in numbers)


def _lines(environment: Mapping[str, str | None]) -> Iterator[str]:
    for name, value in environment.items():
        if value is None and name in _UNSET:
            yield f"unset {name}"
        elif value is not None and name in _EXPORTED and _VALUE.fullmatch(value):
            yield f"export {name}={value}"
