"""Builds what answers Slurm's scripts, and looks after the leases of jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from nodeagent import config as settings
from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.inotify import Inotify
from nodeagent.adapters.slurm import job_scope
from nodeagent.adapters.slurm_conf import SlurmConf
from nodeagent.adapters.spool import SpoolFiles
from nodeagent.domain.device import Inventory
from nodeagent.domain.errors import AgentError
from nodeagent.domain.gres import Gres, device_of
from nodeagent.domain.slurm import Job
from nodeagent.service.effects import Effect
from nodeagent.service.epilog import Epilog
from nodeagent.service.job_cgroups import JobCgroups
from nodeagent.service.job_events import JobEvents
from nodeagent.service.job_leases import JobLeases
from nodeagent.service.orders import NamedCgroup
from nodeagent.service.prolog import Prolog
from nodeagent.service.readiness import Doubts, Readiness
from nodeagent.service.slurm import Slurm, SlurmParts
from nodeagent.service.spool import Spool
from nodeagent.service.survey import Survey
from nodeagent.service.tasks import Tasks
from nodeagent.service.vigil import Listener
from nodeagent.wiring.leases import Base, Leases


@dataclass(frozen=True, slots=True)
class Jobs:
    """*looks* is what the reconciler does for jobs at every look, *listeners* what wakes it for them."""

    slurm: Slurm
    readiness: Readiness
    looks: Mapping[str, Callable[[], None]] = field(default_factory=dict)
    listeners: Mapping[str, Listener] = field(default_factory=dict)


def build_jobs(
    config: settings.Slurm,
    base: Base,
    leases: Leases,
    *,
    conf: SlurmConf,
    effects: Mapping[str, Effect],
    doubts: Doubts,
) -> Jobs:
    """The use cases of Slurm's scripts; where they are turned off, none of a job's.

    *doubts* says what keeps grants of all kinds back.
    """
    if not config.enabled:
        return Jobs(Slurm(), Readiness(base.ledger, doubts, base.survey.doubts))
    of_jobs = JobLeases(base.ledger, leases.releaser, base.changes)
    epilog = Epilog(of_jobs)
    spool = Spool(SpoolFiles(config.spool), base.clock, of_jobs, epilog)
    readiness = Readiness(base.ledger, doubts, base.survey.doubts, spool.doubts)
    cgroups = JobCgroups(base.ledger, effects, base.locks)
    prolog = Prolog(
        of_jobs,
        base.survey,
        leases.granter,
        _gres(conf),
        _home(base.tree),
        None if config.request_from == "none" else config.request_from,
        spool.gave_up,
    )
    tasks = Tasks(
        base.ledger,
        base.tree,
        of_jobs,
        cgroups,
        leases.attacher,
        partial(_constrained, conf),
        partial(_numbered, conf, base.survey),
    )
    slurm = Slurm(SlurmParts(prolog, epilog, tasks, readiness, leases.observing))
    if base.tree is None:
        return Jobs(slurm, readiness, {"spool": spool.look})
    events = JobEvents(Inotify(), base.tree, cgroups)
    looks = {"spool": spool.look, "job cgroups": events.look}
    return Jobs(slurm, readiness, looks, {"job events": events})


def _gres(conf: SlurmConf) -> Callable[[Job, Inventory], Gres | None]:
    def gres(job: Job, inventory: Inventory) -> Gres | None:
        return conf.gres(inventory, node=job.node, slurm_conf=Path(job.conf) if job.conf else None)

    return gres


def _numbered(conf: SlurmConf, survey: Survey, node: str | None, numbers: Sequence[int]) -> frozenset[str]:
    """The keys of the devices that gres.conf has at *numbers*; none where it cannot be read."""
    inventory = survey.found()
    try:
        gres = conf.gres(inventory, node=node)
    except AgentError:
        return frozenset()
    gpus = [gpu for number in numbers if gres is not None and (gpu := gres.gpu(number)) is not None]
    return frozenset(device.key for gpu in gpus if (device := device_of(gpu, inventory)) is not None)


def _constrained(conf: SlurmConf) -> bool:
    """Whether cgroup.conf has ``ConstrainDevices=yes``."""
    lines = conf.beside("cgroup.conf") or ()
    return any((line.get("ConstrainDevices") or "").lower() == "yes" for line in lines)


def _home(tree: CgroupTree | None) -> Callable[[Job], NamedCgroup | None]:
    def home(job: Job) -> NamedCgroup | None:
        scope = job_scope(tree, job.node) if tree else None
        return None if scope is None else NamedCgroup(scope, job.cgroup_names[0], job.cgroup_names[1:])

    return home
