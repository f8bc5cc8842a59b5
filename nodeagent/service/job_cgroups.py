"""Keeps the cgroups of jobs as their leases say: Slurm removes them between steps, and makes them anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog

from nodeagent.domain.errors import AgentError, OutsideFault, Vanished
from nodeagent.domain.lease import Lease, LeaseState
from nodeagent.domain.records import EffectRecord, EffectState
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.cgroup_effects import CGROUP, DMEM, OCCUPANTS
from nodeagent.service.effects import Arguments, Done, Effect, Evidence, record
from nodeagent.service.job_effects import in_job
from nodeagent.service.locks import LeaseLocks
from nodeagent.service.shared_memory import IPC

log = structlog.get_logger()


class JobCgroups:
    """Applies the effects of a job's home again where they do not hold any more."""

    def __init__(self, ledger: Ledger, effects: Mapping[str, Effect], locks: LeaseLocks) -> None:
        self._ledger = ledger
        self._effects = {kind: effects[kind] for kind in (CGROUP, DMEM) if kind in effects}
        self._locks = locks
        self._scopes: frozenset[str] = frozenset()

    def scopes(self) -> frozenset[str]:
        """The cgroups in which Slurm makes those of the jobs that the last whole look found."""
        return self._scopes

    def look(self, names: frozenset[str] | None = None) -> None:
        """Keep every active lease, or those of the cgroups with *names*.

        What fails of one is raised when all had their turn.
        """
        faults: list[Exception] = []
        active = {lease.id: lease for lease in self._ledger.live(LeaseState.ACTIVE) if lease.cgroup}
        made = self._ledger.journals(active, (CGROUP,))
        jobs = {lease: told for lease, journal in made.items() if (told := _home(journal)) is not None}
        if names is None:
            self._scopes = frozenset(str(told["parent"]) for told in jobs.values())
        else:
            jobs = {lease: told for lease, told in jobs.items() if names & {told["name"], *told["also"]}}
        for lease, journal in self._ledger.journals(jobs).items():
            try:
                self._keep(active[lease], journal)
            except (
                Vanished,
                FileNotFoundError,
            ) as fault:  # Slurm removed it meanwhile: the next look finds out
                log.debug("a job's cgroup went while its limits were put on it", lease=lease, why=str(fault))
            except (AgentError, OSError) as fault:
                faults.append(fault)
        if faults:
            raise faults[0]

    def keep(self, lease: Lease) -> None:
        """Have the lease's limits on the cgroup that its job has now. Raises OutsideFault where it cannot."""
        self._keep(lease, self._ledger.effects(lease.id))

    def _keep(self, lease: Lease, journal: Sequence[EffectRecord]) -> None:
        if not any(in_job(one.arguments) for one in journal):
            return
        with self._locks.of(lease.id):
            now = self._ledger.lease(lease.id)
            if now is None or now.state is not LeaseState.ACTIVE:
                return  # its end has begun, and takes everything away
            done: list[Done] = []
            where: Evidence = {}
            for one in journal:
                evidence = self._fresh(one, where)
                if one.kind == CGROUP:
                    where = {name: evidence[name] for name in ("path", "inode")}
                if evidence != (one.evidence or {}):
                    done.append(Done(one, EffectState.VERIFIED, evidence))
            if done:
                with self._ledger.write(release=True) as tx:
                    record(tx, done)

    def _fresh(self, one: EffectRecord, where: Evidence) -> Evidence:
        """What the journal is to say of an effect now; *where*: the job's cgroup as it is."""
        evidence = one.evidence or {}
        if not in_job(one.arguments):
            return evidence
        if one.kind in (OCCUPANTS, IPC):
            return {**evidence, **where}
        effect = self._effects[one.kind]
        try:
            moved = {**evidence, **where}
            if moved == evidence:
                return {**evidence, **effect.verify(one.arguments, evidence)}
        except (OutsideFault, FileNotFoundError):
            pass
        applied = {**evidence, **effect.apply(one.arguments)}
        return {**applied, **effect.verify(one.arguments, applied)}


def _home(journal: Sequence[EffectRecord]) -> Arguments | None:
    """What is on record of the job's cgroup, if the lease is held by that."""
    return next((one.arguments for one in journal if in_job(one.arguments)), None)
