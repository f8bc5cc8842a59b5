"""A job's lease: asked for by Slurm's prolog, before any of the job's code runs."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable
from pathlib import PurePath

import structlog

from nodeagent.domain.device import Inventory
from nodeagent.domain.errors import InvalidField, OutsideFault
from nodeagent.domain.gres import Gres, device_of
from nodeagent.domain.lease import ENDED, AnchorKind, HolderKind, Lease, LeaseState
from nodeagent.domain.refusals import Code, Refusal
from nodeagent.domain.request import Priority, Request
from nodeagent.domain.slurm import Job, Verdict, Word
from nodeagent.domain.slurm_request import Place, asked_in, slices_of
from nodeagent.service.grant import OVER_QUOTA, Granter, Outcome
from nodeagent.service.job_leases import JobLeases
from nodeagent.service.orders import AnchorOrder, Behalf, Caller, NamedCgroup, Order
from nodeagent.service.survey import Survey

log = structlog.get_logger()

# How long a job's place in the queue is kept between two calls of its prolog; the epilog ends it before.
QUEUE_SECONDS = 60
TRIES = 2  # Slurm removes an empty job's cgroup at any time, also between our making and limiting it
_RENDER_NODE = re.compile(r"(renderD|card)[0-9]+|pci-.*", re.ASCII)
# A node that is not whole; else the capacity is there and somebody has it, or the node is about to be ready.
_BROKEN = frozenset({Code.CARD_NOT_HEALTH, Code.NO_DEVICE, Code.OWNED_LOCALLY})

GresOf = Callable[[Job, Inventory], Gres | None]
HomeOf = Callable[[Job], NamedCgroup | None]


class Prolog:
    """Turns what Slurm gave a job into a lease, and waits for capacity that the node owes.

    *gres* is what Slurm calls the node's GPUs; *home* where a job's cgroup is; *words* which of a job's words
    say what it asks for, None: none does; *gave_up* whether the script of a call is known to be gone.
    """

    def __init__(
        self,
        leases: JobLeases,
        survey: Survey,
        granter: Granter,
        gres: GresOf,
        home: HomeOf,
        words: str | None,
        gave_up: Callable[[Job], bool],
    ) -> None:
        self._leases = leases
        self._survey = survey
        self._granter = granter
        self._gres = gres
        self._home = home
        self._words = words
        self._gave_up = gave_up

    def run(self, caller: Caller, job: Job, wait_seconds: float) -> Verdict:
        """Grant *job* its lease, once a run, and answer within *wait_seconds*.

        Raises LedgerUnavailable where nothing can be granted now.
        """
        until = time.monotonic() + wait_seconds
        try:
            places = self._places(job)
        except (InvalidField, OutsideFault) as fault:
            return Verdict(Word.FAULT, str(fault))
        if not places:
            return Verdict(Word.NONE)
        asked = asked_in(job.words[self._words]) if self._words else None
        slices = slices_of(places, asked)
        if isinstance(slices, str):
            return self._refuse(job, slices)
        if self._gave_up(job):
            return Verdict(Word.FAULT, "this prolog gave up before the agent answered")
        if older := self._end_older(caller, job, wait_seconds):
            return Verdict(Word.WAIT, f"lease {older.id} of an earlier run is not clean yet")
        return self._grant(caller, job, Request(slices, priority=Priority.HIGH), until)

    def _refuse(self, job: Job, why: str) -> Verdict:
        self._leases.tell_refused(job, why)
        return Verdict(Word.REFUSED, f"job {job.id} {why}")

    def _places(self, job: Job) -> tuple[Place, ...]:
        """The job's GPUs that the agent keeps. Raises InvalidField or OutsideFault where one is not found."""
        if not job.gpus:
            return ()
        inventory = self._survey.inventory()
        gres = self._gres(job, inventory)
        if gres is None:
            raise OutsideFault("gres.conf", "is not found: name it in slurm.gres_conf")
        places = []
        for number in job.gpus:
            gpu = gres.gpu(number)
            if gpu is None:
                raise OutsideFault("gres.conf", f"has {len(gres.gpus)} GPUs and no number {number}")
            if not _RENDER_NODE.fullmatch(PurePath(gpu.file).name):
                continue  # another maker's
            device = device_of(gpu, inventory)
            if device is None:
                raise OutsideFault(gpu.file, "is in gres.conf, and is no device of this node")
            places.append(Place(device, gpu.shards))
        return tuple(places)

    def _end_older(self, caller: Caller, job: Job, seconds: float) -> Lease | None:
        """End what an earlier run of the job still has, as after a lost epilog; one that has not ended.

        Before Slurm 23.02 another user's job of the same id is told from this run by its user alone.
        """
        live = [one for one in self._leases.of(job) if one.state not in ENDED]
        older = [one for one in live if not job.is_run(one.request_id) or one.holder.uid != job.uid]
        self._leases.end(older, uid=caller.uid, reason="its job runs again")
        return None if self._leases.ended(older, seconds) else older[-1]

    def _grant(self, caller: Caller, job: Job, request: Request, until: float) -> Verdict:
        fault = ""
        for _ in range(TRIES):
            lease = self._leases.of_run(job)
            try:
                if lease is None or _ended(lease):
                    outcome = self._asked(caller, self._order(job, request, lease), until)
                    if isinstance(outcome, Refusal):
                        return self._refused(outcome, job)
                    lease = outcome.lease
                return self._followed(lease.id, request, until)
            except OutsideFault as error:
                fault = str(error)
                log.warning("a job's lease could not be made", job=job.id, why=fault)
        return Verdict(Word.FAULT, fault)

    def _asked(self, caller: Caller, order: Order, until: float) -> Outcome:
        """What comes of *order*: where leases that count towards a quota are ending, once they have.

        Slurm starts a user's next job when the one before is over, of which the release may take a moment.
        """
        outcome = self._granter.grant(caller, order)
        if not isinstance(outcome, Refusal) or outcome.code is not Code.QUOTA_NOT_FIT:
            return outcome
        ending = self._leases.ending(outcome.leases)
        if ending and self._leases.ended(ending, max(0.0, until - time.monotonic())):
            return self._granter.grant(caller, order)
        return outcome

    def _followed(self, lease_id: int, request: Request, until: float) -> Verdict:
        lease = self._leases.follow(lease_id, max(0.0, until - time.monotonic()))
        if lease and lease.reason == OVER_QUOTA:
            return Verdict(Word.REFUSED, f"lease {lease_id}, in its turn, was {OVER_QUOTA}")
        if lease is None or _ended(lease):
            raise OutsideFault(f"lease {lease_id}", (lease and lease.reason) or "is gone")
        if lease.observed:
            return Verdict(Word.NONE)
        if lease.state is LeaseState.ACTIVE:
            return Verdict(Word.GRANTED, f"lease {lease_id}", _hook(lease))
        return Verdict(Word.WAIT, self._leases.in_the_way(_devices(request), lease_id))

    def _refused(self, refusal: Refusal, job: Job) -> Verdict:
        """But for quotas a refusal is never the job's fault: what it may ask for was looked at before."""
        if refusal.code is Code.QUOTA_NOT_FIT:
            return Verdict(Word.REFUSED, f"job {job.id} is over the {refusal.why}")
        codes = {refusal.code, *(one.code for one in refusal.devices)}
        word = Word.FAULT if codes & _BROKEN else Word.WAIT
        reasons = "; ".join(f"{one.device} {one.code}: {one.why}" for one in refusal.devices)
        return Verdict(word, reasons or f"{refusal.code}: {refusal.why}")

    def _order(self, job: Job, request: Request, ended: Lease | None) -> Order:
        """*ended* is the lease that this run had before: its request id is used up."""
        return Order(
            request=request,
            holder_kind=HolderKind.SLURM,
            holder_id=str(job.id),
            anchor=AnchorOrder(AnchorKind.EXTERNAL),
            request_id=job.run if ended is None else f"{job.run}.{ended.id}",
            digest=hashlib.sha256(repr((job.uid, job.gid, request.slices)).encode()).hexdigest(),
            wait_seconds=QUEUE_SECONDS,
            behalf=Behalf(job.uid, job.gid, self._home(job), job.account),
        )


def _ended(lease: Lease) -> bool:
    return lease.state not in (LeaseState.QUEUED, LeaseState.PREPARING, LeaseState.ACTIVE)


def _hook(lease: Lease) -> tuple[str, str] | None:
    """What root needs to load the hook into the job itself: the limits' directory, and the library."""
    environment = lease.environment or {}
    limits, library = environment.get("GPULEASE_HOOK"), environment.get("LD_PRELOAD")
    return (str(PurePath(limits).parent), library) if limits and library else None


def _devices(request: Request) -> list[str]:
    return [key for one in request.slices for key in one.device]
