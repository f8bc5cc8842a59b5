"""Booking: a lease's row, slices and journal in one transaction, before anything is done for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nodeagent.domain.clock import SECOND_NS, Clock
from nodeagent.domain.errors import KeyReused, LedgerUnavailable
from nodeagent.domain.lease import Anchor, Holder, HolderKind, Lease, LeaseState, PlacedSlice
from nodeagent.domain.ownership import Asker
from nodeagent.domain.queue import Reservation, Turn
from nodeagent.domain.quota import Breach, Payer
from nodeagent.domain.records import EffectState
from nodeagent.domain.refusals import Refusal
from nodeagent.domain.request import Request
from nodeagent.ledger.ledger import Ledger
from nodeagent.ledger.queries import Queries
from nodeagent.ledger.transaction import Transaction
from nodeagent.service.anchoring import Anchors
from nodeagent.service.classes import Classes
from nodeagent.service.members import Askers
from nodeagent.service.nesting import Nesting
from nodeagent.service.observing import Observing
from nodeagent.service.orders import Caller, Order
from nodeagent.service.placing import Draft, Placed, Placer
from nodeagent.service.plan import Planner, adopted_by
from nodeagent.service.queue import Queue
from nodeagent.service.quota_rules import refused
from nodeagent.service.quotas import Quotas
from nodeagent.service.survey import Survey


@dataclass(frozen=True, slots=True)
class Booked:
    """A lease that is PREPARING or QUEUED; *fresh* is False when the same request had booked it before."""

    lease: Lease
    fresh: bool


class Booker:
    """Writes down what is granted, so that a crash can neither lose it nor grant it again."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        survey: Survey,
        anchors: Anchors,
        quotas: Quotas,
        planner: Planner,
        placer: Placer,
        nesting: Nesting,
        observing: Observing,
        queue: Queue,
        classes: Classes,
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._survey = survey
        self._anchors = anchors
        self._quotas = quotas
        self._rules = quotas.rules
        self._classes = classes
        self._askers = Askers(quotas.rules.members, quotas.owner_of)
        self._planner = planner
        self._placer = placer
        self._nesting = nesting
        self._observing = observing
        self._queue = queue

    def book(self, caller: Caller, order: Order) -> Booked | Refusal:
        """Book *order*, once for each request id of the caller's.

        Raises:
            KeyReused: the request id came before with another body.
            TooMany: the caller asks faster than its rate.
            InvalidField, NotAllowed: what it adopts is not there, or not its own.
            InLease: it asks for a container, in a lease of its own.
        """
        again = _remembered(self._ledger, caller, order)
        if again is not None:
            return Booked(again, fresh=False)
        self._quotas.take_token(caller)
        observed = self._observing.why(order)
        if order.contained and observed is None:
            self._nesting.check(caller, cdi=order.request.cdi)
        anchor = self._anchors.open(order.anchor, caller)
        if observed is not None:
            return self._observe(caller, order, self._anchors.loose(anchor), observed)
        draft = self._placer.draft(
            (order.behalf or caller).uid,
            self._askers.of(caller, order),
            self._survey.inventory(),
            self._ledger.held(),
            order.request,
            may_wait=order.wait_seconds > 0,
            adopted=order.anchor.adopts,
            container=anchor.container,
            kept=self._queue.kept(order.request, order.holder_kind),
            ends_ns=ends_ns(anchor),
        )
        with self._ledger.write() as tx:
            again = _remembered(tx, caller, order)
            if again is not None:
                return Booked(again, fresh=False)
            placed = self._admit(tx, caller, order, draft)
            if isinstance(placed, Refusal):
                blockers = {"blockers": list(placed.blockers)}
                tx.event("refused", uid=draft.uid, reason=placed.code, data=blockers)
                return placed
            return Booked(self._open(tx, caller, order, anchor, draft, placed), fresh=True)

    def _observe(self, caller: Caller, order: Order, anchor: Anchor, why: str) -> Booked | Refusal:
        """Book a lease that holds nothing, and tell what it would hold beside all others.

        The limits of one user hold all the same: they keep the agent itself from being flooded.
        """
        uid = (order.behalf or caller).uid
        draft = self._observed_draft(uid, self._askers.of(caller, order), order.request, anchor)
        with self._ledger.write() as tx:
            again = _remembered(tx, caller, order)
            if again is not None:
                return Booked(again, fresh=False)
            over = self._quotas.refusal(caller, tx.counts(self._quotas.charged(caller)))
            if over is not None:
                tx.event("refused", uid=uid, reason=over.code)
                return over
            breach = self._breach(tx, self._rules.payer(caller, order), draft, draft.size)
            lease = self._open_row(tx, caller, order, anchor, LeaseState.PREPARING)
            self._observing.write(tx, lease, refused(breach) if breach else draft.placed, why)
            return Booked(lease, fresh=True)

    def _observed_draft(self, uid: int, asker: Asker, request: Request, anchor: Anchor) -> Draft:
        return self._placer.draft(
            uid,
            asker,
            self._survey.inventory(foreign=False),  # those are the observed themselves, for the most part
            self._ledger.held() + self._observing.held(),
            request,
            container=anchor.container,
        )

    def _observe_queued(self, lease: Lease, why: str) -> None:
        """Let a lease that waits begin with nothing, as one that comes now does."""
        asker = self._askers.waiting(lease)
        draft = self._observed_draft(lease.holder.uid, asker, lease.request, lease.anchor)
        with self._ledger.write() as tx:
            current = tx.lease(lease.id)
            if current is None or current.state is not LeaseState.QUEUED:
                return
            for record in tx.effects(lease.id):
                tx.mark_effect(record.id, EffectState.UNDONE, {})
            tx.place(lease.id, ())
            tx.set_anchor(lease.id, self._anchors.loose(lease.anchor))
            self._observing.write(tx, lease, draft.placed, why)

    def place_queued(self, lease: Lease, kept: tuple[Reservation, ...] = ()) -> Turn:
        """Give a queued lease its slices, if it fits now beside what is *kept* for those before it."""
        if why := self._observing.why_lease(lease):
            self._observe_queued(lease, why)
            return Turn.TAKEN
        adopted = adopted_by(self._ledger.effects(lease.id))
        payer = self._rules.waiting(self._ledger, lease)
        draft = self._placer.draft(
            lease.holder.uid,
            self._askers.waiting(lease),
            self._survey.inventory(),
            self._ledger.held(),
            lease.request,
            may_wait=payer is not None,  # only then is its size told where it does not fit
            adopted=adopted,
            container=lease.anchor.container,
            kept=kept,
            ends_ns=ends_ns(self._anchors.started(lease.anchor)),
        )
        if isinstance(draft.placed, Refusal) or not draft.placed:
            return Turn.OVER_QUOTA if self._breach(self._ledger, payer, draft, draft.size) else Turn.WAITS
        with self._ledger.write() as tx:
            current = tx.lease(lease.id)
            if current is None or current.state is not LeaseState.QUEUED:
                return Turn.WAITS
            placed = self._placer.settle(draft, tx.held())
            if isinstance(placed, Refusal) or not placed:
                return Turn.WAITS
            if self._breach(tx, payer, draft, placed):
                return Turn.OVER_QUOTA
            tx.place(lease.id, placed)
            self._grant(tx, lease.id, draft, placed)
        return Turn.TAKEN

    def _admit(self, tx: Transaction, caller: Caller, order: Order, draft: Draft) -> Placed | Refusal:
        """The slices; none of them when the order waits for its turn instead.

        What is over a quota waits, too, unless it always would be; but no job does: Slurm has started it.
        """
        counts = tx.counts(self._quotas.charged(caller))
        over = self._quotas.refusal(caller, counts)
        if over is not None:
            return over
        placed = self._placer.settle(draft, tx.held())
        if isinstance(placed, Refusal):
            return placed
        breach = self._breach(tx, self._rules.payer(caller, order), draft, placed or draft.size)
        if breach and (breach.never or not draft.may_wait or order.holder_kind is HolderKind.SLURM):
            return refused(breach)
        if placed and not breach:
            return placed
        return self._quotas.refusal(caller, counts, queueing=True) or ()

    def _breach(self, ledger: Queries, payer: Payer | None, draft: Draft, placed: Placed) -> Breach | None:
        """Of what *placed* is more than the request's class allows, or a quota beside what is held."""
        return self._classes.over(draft.request, placed) or self._rules.breach(ledger, payer, placed)

    def _open(
        self, tx: Transaction, caller: Caller, order: Order, anchor: Anchor, draft: Draft, placed: Placed
    ) -> Lease:
        state = LeaseState.PREPARING if placed else LeaseState.QUEUED
        lease_id = self._open_row(tx, caller, order, anchor, state, placed).id
        for effect in self._planner.home(
            lease_id,
            caller,
            anchor,
            adopted=order.anchor.adopts,
            contained=order.contained,
            behalf=order.behalf,
        ):
            tx.plan_effect(lease_id, effect.kind, effect.arguments)
        if placed:
            self._grant(tx, lease_id, draft, placed)
        else:
            tx.event("queued", uid=draft.uid, lease=lease_id)
        return _read(tx, lease_id)

    def _open_row(
        self,
        tx: Transaction,
        caller: Caller,
        order: Order,
        anchor: Anchor,
        state: LeaseState,
        placed: Placed = (),
    ) -> Lease:
        whose, waits = order.behalf or caller, state is LeaseState.QUEUED
        lease_id = tx.open_lease(
            state=state,
            holder=Holder(order.holder_kind, order.holder_id, whose.uid),
            gid=whose.gid,
            charged_uid=self._quotas.charged(caller),
            asker_uid=caller.uid,
            anchor=anchor,
            request=order.request,
            request_id=order.request_id,
            digest=order.digest,
            placed=placed,
            wait_until_ns=self._clock.boot_ns() + order.wait_seconds * SECOND_NS if waits else None,
            account=order.behalf.account if order.behalf else None,
        )
        return _read(tx, lease_id)

    def _grant(self, tx: Transaction, lease_id: int, draft: Draft, placed: Sequence[PlacedSlice]) -> None:
        """Journal what is to be set for the slices, and say for each device who was granted on it."""
        journal = tx.effects(lease_id)
        for effect in self._planner.limits(
            lease_id, draft.uid, draft.request, journal, placed, draft.inventory, draft.container
        ):
            tx.plan_effect(lease_id, effect.kind, effect.arguments)
        for one in placed:
            tx.event("granted", uid=draft.uid, lease=lease_id, device=one.device)


def ends_ns(anchor: Anchor) -> int | None:
    """When a lease of *anchor* ends at the latest unless renewed; None where that is not known."""
    if anchor.ttl_seconds is None or anchor.deadline_ns is None:
        return None
    return anchor.deadline_ns + (0 if anchor.armed else anchor.ttl_seconds * SECOND_NS)


def _read(tx: Transaction, lease_id: int) -> Lease:
    lease = tx.lease(lease_id)
    if lease is None:
        raise LedgerUnavailable(f"lease {lease_id} vanished inside its own transaction")
    return lease


def _remembered(ledger: Queries, caller: Caller, order: Order) -> Lease | None:
    """The lease that the same request got before."""
    if order.request_id is None:
        return None
    first = ledger.remembered(caller.uid, order.request_id)
    if first is None:
        return None
    if first.digest != order.digest:
        raise KeyReused(f"request_id {order.request_id} was used before with another body")
    return ledger.lease(first.lease)
