"""What Slurm's prolog, epilog and task-prolog ask for: one door for the API."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from nodeagent.domain.errors import AgentError, InvalidField, NotAllowed, OutsideFault
from nodeagent.domain.lease import HolderKind
from nodeagent.domain.slurm import Job, Verdict, Word, gpus_of, job_of, number, parse_environment
from nodeagent.service.epilog import Epilog
from nodeagent.service.observing import Observing
from nodeagent.service.orders import Caller
from nodeagent.service.prolog import Prolog
from nodeagent.service.readiness import Readiness
from nodeagent.service.rights import must_administer
from nodeagent.service.tasks import NONE, OBSERVED, Tasks

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SlurmParts:
    """What the scripts' calls go to."""

    prolog: Prolog
    epilog: Epilog
    tasks: Tasks
    readiness: Readiness
    observing: Observing


class Slurm:
    """The three calls of Slurm's scripts; bodies are environments as the kernel has them.

    Without *parts* no job has a lease here.
    """

    def __init__(self, parts: SlurmParts | None = None) -> None:
        self._parts = parts

    def prolog(self, caller: Caller, body: bytes, wait_seconds: float = 0) -> Verdict:
        """Give a job that is about to start its lease.

        Raises:
            InvalidField: no environment that Slurm gives a prolog.
            LedgerUnavailable: nothing is granted now.
        """
        must_administer(caller)
        job = job_of(parse_environment(body))
        if self._parts is None or not job.gpus:
            return Verdict(Word.NONE)
        if self._parts.observing.why_kind(HolderKind.SLURM):
            return self._observe(self._parts, caller, job)
        self._parts.readiness.check()
        return self._parts.prolog.run(caller, job, wait_seconds)

    @staticmethod
    def _observe(parts: SlurmParts, caller: Caller, job: Job) -> Verdict:
        """Let the job start, whatever would have become of it, and tell that.

        Only a run that is enforced already, as its prolog comes again, stays so.
        """
        try:
            parts.readiness.check()
            verdict = parts.prolog.run(caller, job, 0)
        except AgentError as fault:
            verdict = Verdict(Word.FAULT, str(fault))
        if verdict.word not in (Word.GRANTED, Word.NONE):
            parts.observing.note(HolderKind.SLURM, job.uid, verdict.word, verdict.why, {"job": job.id})
        return verdict if verdict.word is Word.GRANTED else Verdict(Word.NONE)

    def epilog(self, caller: Caller, body: bytes, wait_seconds: float = 0) -> Verdict:
        """Take back the lease of a job that ended. Raises InvalidField."""
        must_administer(caller)
        job = job_of(parse_environment(body))
        if job.at_ns is None:
            raise InvalidField("GPULEASE_AT", "has to be there: it tells this run from a later one")
        if self._parts is None:
            return Verdict(Word.NONE)
        return self._parts.epilog.run(job, uid=caller.uid, wait_seconds=wait_seconds)

    def task(self, caller: Caller, body: bytes) -> tuple[str, ...]:
        """Let a task of a job into the job's lease; the lines that Slurm's TaskProlog understands.

        Raises:
            InvalidField: no environment that Slurm gives a task-prolog.
            NotAllowed, OutsideFault: the task must not run, for it is not held by its job's lease.
        """
        told = parse_environment(body)
        for name in ("SLURM_JOB_ID", "SLURM_HET_JOB_ID", "SLURM_TASK_PID"):
            number(told, name)
        gpus_of(told, "SLURM_STEP_GPUS")
        if self._parts is None:
            return NONE
        if not self._parts.observing.why_kind(HolderKind.SLURM):
            return self._parts.tasks.enter(caller, told)
        try:
            lines = self._parts.tasks.enter(caller, told)
        except (NotAllowed, OutsideFault) as fault:
            log.info("a task that would be refused", uid=caller.uid, why=str(fault))
            return OBSERVED
        return OBSERVED if lines == NONE else lines  # the job may have begun before there was an agent
