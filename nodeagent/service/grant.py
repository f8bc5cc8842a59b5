"""Grant: book, apply the journal, and only then answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import structlog

from nodeagent.domain.environment import environment, guarantee_of
from nodeagent.domain.errors import LedgerUnavailable, OutsideFault
from nodeagent.domain.guarantee import Guarantee
from nodeagent.domain.lease import AnchorKind, HolderKind, Lease, LeaseState
from nodeagent.domain.queue import Reservation, Turn
from nodeagent.domain.refusals import Refusal
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.anchoring import Anchors
from nodeagent.service.booking import Booker
from nodeagent.service.cgroup_effects import CGROUP
from nodeagent.service.changes import Changes
from nodeagent.service.effects import Done, Journal, evidence_of, record
from nodeagent.service.locks import LeaseLocks
from nodeagent.service.means import environment_of, holds_of
from nodeagent.service.orders import Caller, Granted, Order, Queued
from nodeagent.service.plan import Planner
from nodeagent.service.release import Releaser
from nodeagent.service.survey import Survey

log = structlog.get_logger()

Outcome = Granted | Queued | Refusal
IN_ITS_OWN = (AnchorKind.CGROUP, AnchorKind.CONTAINER)  # live in the lease's own cgroup
UNDONE = (LeaseState.RELEASING, LeaseState.RELEASED, LeaseState.FAILED)
OVER_QUOTA = "over a quota"  # why a job's lease that waited was cancelled
FOLLOW_SECONDS = 4.0  # how long a repeated request follows the first one that still prepares


class Granter:
    """Turns an order into a lease, a place in the queue, or a refusal."""

    def __init__(
        self,
        ledger: Ledger,
        survey: Survey,
        anchors: Anchors,
        booker: Booker,
        planner: Planner,
        journal: Journal,
        releaser: Releaser,
        locks: LeaseLocks,
        changes: Changes,
        keep: Callable[[int], None] = lambda lease: None,
        took: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._ledger = ledger
        self._survey = survey
        self._anchors = anchors
        self._booker = booker
        self._planner = planner
        self._journal = journal
        self._releaser = releaser
        self._locks = locks
        self._changes = changes
        self._took = took  # told how long each grant took that was made at once
        self._keep = keep  # told of each lease that is active, before it is answered

    def grant(self, caller: Caller, order: Order) -> Outcome:
        """Grant *order*; a repeated request id gives what the first one gave.

        Raises:
            NotAllowed, InvalidField, KeyReused, TooMany: the order cannot be taken from this caller.
            LedgerUnavailable, OutsideFault: the node cannot serve it now; nothing is left behind.
        """
        began = time.monotonic()
        booked = self._booker.book(caller, order)
        if isinstance(booked, Refusal):
            return booked
        if booked.lease.state is LeaseState.QUEUED:
            self._changes.announce(booked.lease.id)
            return Queued(booked.lease, booked.fresh)
        if not booked.fresh:
            return Granted(self._followed(booked.lease.id), fresh=False)
        lease = self.prepare(booked.lease.id)
        self._took(time.monotonic() - began)
        return Granted(lease, fresh=True)

    def prepare(self, lease_id: int) -> Lease:
        """Apply the journal of a booked lease and make it active; also finishes one that a crash cut short.

        Raises OutsideFault after undoing what had been applied.
        """
        try:
            with self._locks.of(lease_id):
                lease = self._lease(lease_id)
                if lease.state is LeaseState.PREPARING:
                    lease = self._activate(lease)
        except LedgerUnavailable:
            raise  # the reconciler finishes it when the ledger is back
        except Exception as fault:  # also one that nobody foresaw: what is booked must not stay so for ever
            log.warning("a grant could not be prepared", lease=lease_id, why=str(fault))
            self._releaser.end(lease_id, uid=None, reason=f"not prepared: {fault}")
            if not isinstance(fault, OSError):
                raise
            raise OutsideFault(getattr(fault, "filename", None) or "this node", str(fault)) from fault
        self._changes.announce(lease_id)
        return lease

    def try_queued(self, lease: Lease, kept: tuple[Reservation, ...] = ()) -> Turn:
        """Grant a queued lease if it fits now beside what is *kept* for those before it.

        A job's is ended where a quota is in the way: it is refused then, for Slurm has started it already.
        """
        turn = self._booker.place_queued(lease, kept)
        if turn is Turn.TAKEN:
            self.prepare(lease.id)
        elif turn is Turn.OVER_QUOTA and lease.holder.kind is HolderKind.SLURM:
            self._releaser.end(lease.id, uid=None, reason=OVER_QUOTA)
        return turn

    def _activate(self, lease: Lease) -> Lease:
        done = self._journal.apply(lease.id)
        inventory = self._survey.found()
        placed = [held.placed for held in lease.slices]
        if not placed:
            return self._activate_observed(lease, done)
        guarantee = guarantee_of(placed, inventory).with_holds(holds_of(done))
        if short := self._planner.shortfall(lease.request, guarantee):
            raise OutsideFault("this node", f"holds the lease weaker than demanded: {', '.join(short)}")
        cgroup = evidence_of(done, CGROUP)
        anchor = self._anchors.started(lease.anchor)
        if cgroup and anchor.kind in IN_ITS_OWN and anchor.cgroup is None:
            anchor = replace(anchor, cgroup=str(cgroup["path"]), inode=int(cgroup["inode"]))
        with self._ledger.write() as tx:
            record(tx, done)
            tx.activate(
                lease.id,
                guarantee=guarantee,
                environment=environment(lease.id, placed, inventory) | environment_of(done),
                cgroup=str(cgroup["path"]) if cgroup else None,
                anchor=anchor,
            )
            active = tx.lease(lease.id) or lease
        self._keep(lease.id)
        return active

    def _activate_observed(self, lease: Lease, done: Sequence[Done]) -> Lease:
        """A lease that holds nothing: its holder gets its id, and nothing that masks or limits."""
        with self._ledger.write() as tx:
            record(tx, done)
            tx.activate(
                lease.id,
                guarantee=Guarantee(),
                environment={"GPULEASE_ID": str(lease.id)},
                cgroup=None,
                anchor=self._anchors.started(lease.anchor),
            )
            return tx.lease(lease.id) or lease

    def _followed(self, lease_id: int) -> Lease:
        """What the first of two same requests gave, once that is known."""

        def prepared() -> Lease | None:
            lease = self._lease(lease_id)
            return None if lease.state is LeaseState.PREPARING else lease

        lease = self._changes.wait_for(prepared, FOLLOW_SECONDS, lease_id=lease_id, through_close=True)
        if lease is None:
            raise LedgerUnavailable(f"lease {lease_id} is still being prepared; try again")
        if lease.environment is None and lease.state in UNDONE:
            raise OutsideFault(f"lease {lease_id}", lease.reason or "not prepared")
        return lease

    def _lease(self, lease_id: int) -> Lease:
        lease = self._ledger.lease(lease_id)
        if lease is None:
            raise LedgerUnavailable(f"lease {lease_id} is not in the ledger")
        return lease
