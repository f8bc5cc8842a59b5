"""Builds what answers Slurm's scripts, and looks after the leases of jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from nodeagent import config as settings
from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.slurm import job_scope
from nodeagent.adapters.slurm_conf import SlurmConf
from nodeagent.adapters.spool import SpoolFiles
from nodeagent.domain.clock import Clock
from nodeagent.domain.device import Inventory
from nodeagent.domain.gres import Gres
from nodeagent.domain.slurm import Job
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.attach import Attacher
from nodeagent.service.changes import Changes
from nodeagent.service.effects import Effect
from nodeagent.service.epilog import Epilog
from nodeagent.service.grant import Granter
from nodeagent.service.job_cgroups import JobCgroups
from nodeagent.service.job_leases import JobLeases
from nodeagent.service.locks import LeaseLocks
from nodeagent.service.orders import NamedCgroup
from nodeagent.service.prolog import Prolog
from nodeagent.service.readiness import Doubts, Readiness
from nodeagent.service.release import Releaser
from nodeagent.service.slurm import Slurm, SlurmParts
from nodeagent.service.spool import Spool
from nodeagent.service.survey import Survey
from nodeagent.service.tasks import Tasks


@dataclass(frozen=True, slots=True)
class Base:
    """What leases of jobs are made with; *doubts* says what keeps grants of all kinds back."""

    ledger: Ledger
    clock: Clock
    tree: CgroupTree | None
    conf: SlurmConf
    survey: Survey
    granter: Granter
    releaser: Releaser
    attacher: Attacher
    changes: Changes
    locks: LeaseLocks
    effects: Mapping[str, Effect]
    doubts: Doubts


@dataclass(frozen=True, slots=True)
class Jobs:
    """*looks* is what the reconciler does for jobs at every look."""

    slurm: Slurm
    readiness: Readiness
    looks: Mapping[str, Callable[[], None]] = field(default_factory=dict)


def build_jobs(config: settings.Slurm, base: Base) -> Jobs:
    """The use cases of Slurm's scripts; where they are turned off, none of a job's."""
    if not config.enabled:
        return Jobs(Slurm(), Readiness(base.ledger, base.doubts))
    leases = JobLeases(base.ledger, base.releaser, base.changes)
    epilog = Epilog(leases)
    spool = Spool(SpoolFiles(config.spool), base.clock, leases, epilog)
    readiness = Readiness(base.ledger, base.doubts, spool.doubts)
    cgroups = JobCgroups(base.ledger, base.effects, base.locks)
    prolog = Prolog(
        leases,
        base.survey,
        base.granter,
        _gres(base.conf),
        _home(base.tree),
        None if config.request_from == "none" else config.request_from,
        spool.gave_up,
    )
    tasks = Tasks(base.ledger, base.tree, leases, cgroups, base.attacher, partial(_constrained, base.conf))
    looks = {"spool": spool.look, "job cgroups": cgroups.look}
    return Jobs(Slurm(SlurmParts(prolog, epilog, tasks, readiness)), readiness, looks)


def _gres(conf: SlurmConf) -> Callable[[Job, Inventory], Gres | None]:
    def gres(job: Job, inventory: Inventory) -> Gres | None:
        return conf.gres(inventory, node=job.node, slurm_conf=Path(job.conf) if job.conf else None)

    return gres


def _constrained(conf: SlurmConf) -> bool:
    """Whether cgroup.conf has ``ConstrainDevices=yes``."""
    lines = conf.beside("cgroup.conf") or ()
    return any((line.get("ConstrainDevices") or "").lower() == "yes" for line in lines)


def _home(tree: CgroupTree | None) -> Callable[[Job], NamedCgroup | None]:
    def home(job: Job) -> NamedCgroup | None:
        scope = job_scope(tree, job.node) if tree else None
        return None if scope is None else NamedCgroup(scope, job.cgroup_names[0], job.cgroup_names[1:])

    return home
