"""What Slurm's scripts could not tell an agent that was away: made up for before anything is granted."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import structlog

from nodeagent.adapters.spool import SpoolFiles, Unanswered
from nodeagent.domain.clock import Clock
from nodeagent.domain.errors import InvalidField, OutsideFault
from nodeagent.domain.lease import ENDED
from nodeagent.domain.slurm import Job, job_of, parse_environment
from nodeagent.service.epilog import Epilog
from nodeagent.service.job_leases import JobLeases

log = structlog.get_logger()

UNREAD = "the spool of Slurm's scripts was not read yet"
REMEMBERED = 4096  # prologs that gave up


class Spool:
    """An epilog that nobody answered ends its job's lease; a prolog that gave up ends the one of its run.

    The call of such a prolog may still lie in the agent's socket, and come after its record: it is known by
    its run and the time at which its script ran.
    """

    def __init__(self, files: SpoolFiles, clock: Clock, leases: JobLeases, epilog: Epilog) -> None:
        self._files = files
        self._clock = clock
        self._leases = leases
        self._epilog = epilog
        self._unread: str | None = UNREAD
        self._given_up: OrderedDict[tuple[str, int | None], None] = OrderedDict()

    def doubts(self) -> tuple[str, ...]:
        """What keeps grants back: an epilog may be waiting that frees what is asked for, or ends a job."""
        return (self._unread,) if self._unread else ()

    def gave_up(self, job: Job) -> bool:
        """Whether the script that makes this call is known to have gone without an answer."""
        return (job.run, job.at_ns) in self._given_up

    def look(self) -> None:
        """Act on every record, and remove it once that is in the ledger. Raises OutsideFault."""
        try:
            self._act()
        except OutsideFault as fault:
            self._unread = self._unread and str(fault)
            raise
        self._unread = None

    def _act(self) -> None:
        acts: dict[str, Callable[[Job], object]] = {"prolog": self._prolog, "epilog": self._end}
        for record in self._files.read():
            job = self._job(record)
            if job is not None:
                acts[record.script](job)
            self._files.remove(record)

    def _job(self, record: Unanswered) -> Job | None:
        """The job of a record of this boot; one of another has nothing left to say."""
        if record.boot_id != self._clock.boot_id:
            return None
        try:
            return job_of(parse_environment(record.body))
        except InvalidField as fault:
            log.error("a record of the spool cannot be read", path=str(record.path), why=str(fault))
            return None

    def _prolog(self, job: Job) -> None:
        self._given_up[job.run, job.at_ns] = None
        while len(self._given_up) > REMEMBERED:
            self._given_up.popitem(last=False)
        late = [one for one in self._leases.of(job) if job.is_run(one.request_id) and one.state not in ENDED]
        self._leases.end(late, uid=None, reason="its job's prolog gave up before it was answered")
        log.info("a prolog that nobody answered", job=job.id, leases=[one.id for one in late])

    def _end(self, job: Job) -> None:
        verdict = self._epilog.run(job, uid=None, wait_seconds=0)
        log.info("an epilog that nobody answered", job=job.id, outcome=verdict.word, why=verdict.why)
