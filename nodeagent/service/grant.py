"""Grant: place, book, journal, apply, and only then answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog

from nodeagent.domain.clock import Clock
from nodeagent.domain.device import Inventory
from nodeagent.domain.environment import environment, guarantee_of
from nodeagent.domain.errors import KeyReused, LedgerUnavailable, OutsideFault
from nodeagent.domain.lease import AnchorKind, HeldSlice, Holder, Lease, LeaseState, PlacedSlice
from nodeagent.domain.placement import place
from nodeagent.domain.refusals import Code, Refusal
from nodeagent.domain.request import Request
from nodeagent.ledger.ledger import Ledger
from nodeagent.ledger.queries import Queries
from nodeagent.ledger.transaction import Transaction
from nodeagent.service.anchoring import Anchors
from nodeagent.service.cgroup_effects import CGROUP
from nodeagent.service.changes import Changes
from nodeagent.service.effects import Journal, evidence_of, record
from nodeagent.service.locks import LeaseLocks
from nodeagent.service.orders import Caller, Granted, Order, Queued
from nodeagent.service.plan import Planner
from nodeagent.service.quotas import Quotas
from nodeagent.service.release import Releaser
from nodeagent.service.rights import must_be_allowed
from nodeagent.service.survey import Survey

log = structlog.get_logger()

Outcome = Granted | Queued | Refusal
SECOND_NS = 1_000_000_000
UNDONE = (LeaseState.RELEASING, LeaseState.RELEASED, LeaseState.FAILED)
FOLLOW_SECONDS = 4.0  # how long a repeated request follows the first one that still prepares


@dataclass(frozen=True, slots=True)
class GrantParts:
    """What granting needs; wiring fills it."""

    ledger: Ledger
    clock: Clock
    survey: Survey
    anchors: Anchors
    quotas: Quotas
    planner: Planner
    journal: Journal
    releaser: Releaser
    locks: LeaseLocks
    changes: Changes
    shared_cu_percent: float = 25.0
    max_wait_seconds: int = 86_400


@dataclass(frozen=True, slots=True)
class _Draft:
    """A placement beside the slices *held*, made before the ledger's lock is taken.

    A search may take long, and everybody needs the lock. *placed* is empty where the order may wait.
    """

    held: tuple[HeldSlice, ...]
    placed: tuple[PlacedSlice, ...] | Refusal

    def stale(self, held: Sequence[HeldSlice]) -> bool:
        """Whether it gives slices, and others than those it saw are *held* by now."""
        if isinstance(self.placed, Refusal) or not self.placed:
            return False
        return [one.placed for one in held] != [one.placed for one in self.held]


class Granter:
    """Turns an order into a lease, a place in the queue, or a refusal."""

    def __init__(self, parts: GrantParts) -> None:
        self._parts = parts

    def grant(self, caller: Caller, order: Order) -> Outcome:
        """Grant *order*; a repeated request id gives what the first one gave.

        Raises:
            NotAllowed, InvalidField, KeyReused, TooMany: the order cannot be taken from this caller.
            LedgerUnavailable, OutsideFault: the node cannot serve it now; nothing is left behind.
        """
        must_be_allowed(caller, order)
        known = self._remembered(self._parts.ledger, caller, order)
        if known is not None:
            return self._followed(known)
        self._parts.quotas.take_token(caller)
        booked = self._book(caller, order)
        if isinstance(booked, Refusal | Granted | Queued):
            return self._followed(booked)
        if booked.state is LeaseState.QUEUED:
            self._parts.changes.announce(booked.id)
            return Queued(booked, fresh=True)
        return Granted(self.prepare(booked.id), fresh=True)

    def prepare(self, lease_id: int) -> Lease:
        """Apply the journal of a booked lease and make it active; also finishes one that a crash cut short.

        Raises OutsideFault after undoing what had been applied.
        """
        parts = self._parts
        try:
            with parts.locks.of(lease_id):
                lease = self._lease(lease_id)
                if lease.state is LeaseState.PREPARING:
                    lease = self._activate(lease)
        except LedgerUnavailable:
            raise  # the reconciler finishes it when the ledger is back
        except Exception as fault:  # also one that nobody foresaw: what is booked must not stay so for ever
            log.warning("a grant could not be prepared", lease=lease_id, why=str(fault))
            parts.releaser.end(lease_id, uid=None, reason=f"not prepared: {fault}")
            if not isinstance(fault, OSError):
                raise
            raise OutsideFault(getattr(fault, "filename", None) or "this node", str(fault)) from fault
        parts.changes.announce(lease_id)
        return lease

    def try_queued(self, lease: Lease) -> bool:
        """Place a queued lease if it fits now."""
        parts = self._parts
        inventory = parts.survey.inventory()
        draft = self._draft(inventory, parts.ledger.held(), lease.request)
        if isinstance(draft.placed, Refusal):
            return False
        with parts.ledger.write() as tx:
            current = tx.lease(lease.id)
            if current is None or current.state is not LeaseState.QUEUED:
                return False
            placed = self._settled(tx, draft, inventory, lease.request)
            if isinstance(placed, Refusal):
                return False
            tx.place(lease.id, placed)
            self._plan_limits(tx, lease.id, placed, inventory)
            self._granted(tx, lease.holder.uid, lease.id, placed)
        self.prepare(lease.id)
        return True

    def _book(self, caller: Caller, order: Order) -> Lease | Outcome:
        parts = self._parts
        anchor = parts.anchors.open(order.anchor, caller)
        inventory = parts.survey.inventory()
        draft = self._draft(inventory, parts.ledger.held(), order.request, may_wait=order.wait_seconds > 0)
        with parts.ledger.write() as tx:
            again = self._remembered(tx, caller, order)
            if again is not None:
                return again
            placed = self._admit(tx, caller, order, inventory, draft)
            if isinstance(placed, Refusal):
                self._count_refusal(tx, caller, placed)
                return placed
            queued = not placed
            lease_id = tx.open_lease(
                state=LeaseState.QUEUED if queued else LeaseState.PREPARING,
                holder=Holder(order.holder_kind, order.holder_id, caller.uid),
                gid=caller.gid,
                charged_uid=parts.quotas.charged(caller),
                anchor=anchor,
                request=order.request,
                request_id=order.request_id,
                digest=order.digest,
                placed=placed,
                wait_until_ns=parts.clock.boot_ns() + order.wait_seconds * SECOND_NS if queued else None,
            )
            lease = tx.lease(lease_id)
            if lease is None:
                raise LedgerUnavailable(f"lease {lease_id} vanished inside its own transaction")
            adopted = order.anchor.pid is not None or order.anchor.cgroup is not None
            for effect in parts.planner.home(lease_id, caller, anchor, adopted=adopted):
                tx.plan_effect(lease_id, effect.kind, effect.arguments)
            if queued:
                tx.event("queued", uid=caller.uid, lease=lease_id)
            else:
                self._plan_limits(tx, lease_id, placed, inventory)
                self._granted(tx, caller.uid, lease_id, placed)
            return lease

    def _admit(
        self, tx: Transaction, caller: Caller, order: Order, inventory: Inventory, draft: _Draft
    ) -> tuple[PlacedSlice, ...] | Refusal:
        """The slices; none of them when the order may wait for its turn instead."""
        parts = self._parts
        counts = tx.counts(parts.quotas.charged(caller))
        over = parts.quotas.refusal(caller, counts)
        if over is not None:
            return over
        placed = self._settled(tx, draft, inventory, order.request, may_wait=order.wait_seconds > 0)
        return placed or parts.quotas.refusal(caller, counts, queueing=True) or ()

    def _settled(
        self,
        tx: Transaction,
        draft: _Draft,
        inventory: Inventory,
        request: Request,
        *,
        may_wait: bool = False,
    ) -> tuple[PlacedSlice, ...] | Refusal:
        """What *draft* gives, or what can be given now if the slices that it saw have changed."""
        held = tx.held()
        if draft.stale(held):
            draft = self._draft(inventory, held, request, may_wait=may_wait)
        return draft.placed

    def _draft(
        self, inventory: Inventory, held: tuple[HeldSlice, ...], request: Request, *, may_wait: bool = False
    ) -> _Draft:
        placed = self._place(inventory, held, request)
        if isinstance(placed, Refusal) and may_wait:
            never = self._place(inventory, (), request)
            placed = never if isinstance(never, Refusal) else ()
        return _Draft(held, placed)

    def _place(
        self, inventory: Inventory, held: Sequence[HeldSlice], request: Request
    ) -> tuple[PlacedSlice, ...] | Refusal:
        """Slices beside those *held* that meet the request's floor."""
        placed = place(inventory, held, request, shared_cu_percent=self._parts.shared_cu_percent)
        if isinstance(placed, Refusal):
            return placed
        unmet = request.require.unmet(guarantee_of(placed, inventory))
        if unmet:
            return Refusal(
                Code.GUARANTEE_NOT_MET,
                f"this node cannot hold the asked floor of {', '.join(unmet)} for such a slice",
                "ask for less with --require, or see `nodeagent status` for what the node has",
            )
        return placed

    def _plan_limits(
        self, tx: Transaction, lease_id: int, placed: tuple[PlacedSlice, ...], inventory: Inventory
    ) -> None:
        for effect in self._parts.planner.limits(tx.effects(lease_id), placed, inventory):
            tx.plan_effect(lease_id, effect.kind, effect.arguments)

    def _activate(self, lease: Lease) -> Lease:
        parts = self._parts
        done = parts.journal.apply(lease.id)
        inventory = parts.survey.inventory()
        placed = [held.placed for held in lease.slices]
        cgroup = evidence_of(done, CGROUP)
        anchor = parts.anchors.started(lease.anchor)
        if cgroup and anchor.kind is AnchorKind.CGROUP and anchor.cgroup is None:
            anchor = replace(anchor, cgroup=str(cgroup["path"]), inode=int(cgroup["inode"]))
        with parts.ledger.write() as tx:
            record(tx, done)
            tx.activate(
                lease.id,
                guarantee=guarantee_of(placed, inventory),
                environment=environment(lease.id, placed, inventory),
                cgroup=str(cgroup["path"]) if cgroup else None,
                anchor=anchor,
            )
            return tx.lease(lease.id) or lease

    def _followed(self, outcome: Outcome) -> Outcome:
        """*outcome*; that of a repeated request is what the first one gave, once that is known."""
        if not isinstance(outcome, Granted):
            return outcome
        lease_id = outcome.lease.id

        def prepared() -> Lease | None:
            lease = self._lease(lease_id)
            return None if lease.state is LeaseState.PREPARING else lease

        lease = self._parts.changes.wait_for(prepared, FOLLOW_SECONDS, lease_id=lease_id)
        if lease is None:
            raise LedgerUnavailable(f"lease {lease_id} is still being prepared; try again")
        if lease.environment is None and lease.state in UNDONE:
            raise OutsideFault(f"lease {lease_id}", lease.reason or "not prepared")
        return Granted(lease, fresh=False)

    def _remembered(self, ledger: Queries, caller: Caller, order: Order) -> Outcome | None:
        if order.request_id is None:
            return None
        first = ledger.remembered(caller.uid, order.request_id)
        if first is None:
            return None
        if first.digest != order.digest:
            raise KeyReused(f"request_id {order.request_id} was used before with another body")
        lease = ledger.lease(first.lease)
        if lease is None:
            return None
        return (Queued if lease.state is LeaseState.QUEUED else Granted)(lease, fresh=False)

    @staticmethod
    def _granted(tx: Transaction, uid: int, lease_id: int, placed: Sequence[PlacedSlice]) -> None:
        """Say it once for each device, so that a device's events show who was granted on it."""
        for one in placed:
            tx.event("granted", uid=uid, lease=lease_id, device=one.device)

    def _count_refusal(self, tx: Transaction, caller: Caller, refusal: Refusal) -> None:
        tx.event("refused", uid=caller.uid, reason=refusal.code, data={"blockers": list(refusal.blockers)})

    def _lease(self, lease_id: int) -> Lease:
        lease = self._parts.ledger.lease(lease_id)
        if lease is None:
            raise LedgerUnavailable(f"lease {lease_id} is not in the ledger")
        return lease
