"""Release: stop entries, walk the journal back, and free a slice only with proof; else quarantine it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

import structlog

from nodeagent.domain.errors import AgentError, NotAllowed
from nodeagent.domain.lease import ENDED, Lease, LeaseState, SliceState
from nodeagent.domain.records import EffectRecord, Json
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.changes import Changes
from nodeagent.service.cleaners import TURN_SECONDS, Cleaners
from nodeagent.service.effects import Journal, Pending, Undoing, record
from nodeagent.service.locks import LeaseLocks

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Step:
    """The journal's entry *at* is not undone yet; at *deadline*, in monotonic seconds, it is given up."""

    at: int | None
    deadline: float


class Releaser:
    """Ends leases. Nothing is freed under a living process: what is not proved gone is quarantined.

    So is a slice whose device is *away*, until that is back: nobody can look whether it is clean.
    """

    def __init__(
        self,
        ledger: Ledger,
        journal: Journal,
        locks: LeaseLocks,
        changes: Changes,
        timeout_seconds: float,
        away: Callable[[str], bool],
        obstacles: Callable[[Lease], Mapping[str, Json]],
        took: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._ledger = ledger
        self._journal = journal
        self._locks = locks
        self._changes = changes
        self._timeout = timeout_seconds
        self._away = away
        self._obstacles = obstacles
        self._took = took  # told how long each release took that ended clean
        self._began: dict[int, float] = {}  # by lease, monotonic seconds
        self._steps: dict[int, _Step] = {}  # by lease: what its proof waits for
        self._cleaners = Cleaners(changes.announce)

    def close(self) -> None:
        """Take no more work; what is unfinished is taken up again at the next start."""
        self._cleaners.close()

    def end(self, lease_id: int, *, uid: int | None, reason: str, kind: str = "releasing") -> None:
        """Begin to release *lease_id*, and clean in the background. Ending an ended lease changes nothing."""
        with self._locks.of(lease_id):
            began = self._begin(lease_id, uid=uid, reason=reason, kind=kind)
        if began:
            self.clean(lease_id)
        self._changes.announce(lease_id)

    def reap(self, lease_id: int, dead: Callable[[Lease], str | None]) -> None:
        """End *lease_id* if *dead* says so of it as it is now, and why.

        What was read before may be old: since then somebody may have attached, or renewed, and been told so.
        """
        with self._locks.of(lease_id):
            lease = self._ledger.lease(lease_id)
            reason = None if lease is None or lease.state in ENDED else dead(lease)
            began = reason is not None and self._begin(lease_id, uid=None, reason=reason, kind="reaped")
        if began:
            log.info("holder gone", lease=lease_id, why=reason)
            self.clean(lease_id)
            self._changes.announce(lease_id)

    def clean(self, lease_id: int) -> Future[None]:
        """Clean a releasing lease in the background, once at a time."""
        return self._cleaners.submit(lease_id, self._clean)

    def retry(self, lease_id: int) -> Future[None]:
        """Look again whether a quarantined lease is clean by now."""
        return self._cleaners.submit(lease_id, self._retry)

    def force(self, lease_id: int, *, uid: int) -> None:
        """Free the quarantined slices of *lease_id* without proof, on the word of *uid*.

        What could not be undone stays in the journal, and is tried again for as long as it is there.

        Raises:
            NotAllowed: a process of the lease still lives: under it nothing is freed, whoever says so.
        """
        walk = self._journal.undo(lease_id, TURN_SECONDS)
        if walk.pending is not None and walk.pending.alive:
            raise NotAllowed(f"nothing is freed under a living process: {walk.pending.why}")
        with self._ledger.write(release=True) as tx:
            record(tx, walk.done)
            tx.move_slices(lease_id, SliceState.FREE, only=_quarantined_slices(tx.lease(lease_id)))
            why = walk.pending.why if walk.pending else "proved clean"
            tx.event("cleared", uid=uid, lease=lease_id, reason=f"forced: {why}")
        log.warning("slices freed by force", lease=lease_id, uid=uid, why=why)
        self._changes.announce(lease_id)

    def _begin(self, lease_id: int, *, uid: int | None, reason: str, kind: str) -> bool:
        with self._ledger.write(release=True) as tx:
            lease = tx.lease(lease_id)
            if lease is None or lease.state in ENDED:
                return False
            if lease.state is LeaseState.QUEUED:
                tx.move_lease(lease_id, LeaseState.CANCELLED, reason=reason)
                tx.event("cancelled", uid=uid, lease=lease_id, reason=reason)
                return False
            if kind == "lost" and lease.state is LeaseState.ACTIVE:
                tx.move_lease(lease_id, LeaseState.LOST, reason=reason)
            if lease.state is not LeaseState.RELEASING:
                tx.move_lease(lease_id, LeaseState.RELEASING, reason=reason)
                tx.move_slices(lease_id, SliceState.CLEANING)
                tx.event(kind, uid=uid, lease=lease_id, reason=reason)
        self._began[lease_id] = time.monotonic()
        return True

    def _clean(self, lease_id: int) -> bool:
        lease = self._ledger.lease(lease_id)
        if lease is None or lease.state is not LeaseState.RELEASING:
            return False
        walk = self._journal.undo(lease_id, min(TURN_SECONDS, self._timeout))
        if walk.pending is not None and not self._given_up(lease_id, walk.at, walk.pending):
            return True
        self._settle(lease, walk)
        self._steps.pop(lease_id, None)
        began = self._began.pop(lease_id, None)
        if began is not None and walk.pending is None:
            self._took(time.monotonic() - began)
        return False

    def _given_up(self, lease_id: int, record: EffectRecord | None, pending: Pending) -> bool:
        """Whether a step of the proof has had its time. Each has its own: memory goes after its process."""
        now, step, at = time.monotonic(), self._steps.get(lease_id), record.id if record else None
        if step is None or step.at != at or pending.patient:
            step = self._steps[lease_id] = _Step(at, now + self._timeout - TURN_SECONDS)
        return not pending.patient and now >= step.deadline

    def _settle(self, lease: Lease, walk: Undoing) -> None:
        """Free what is proved clean, quarantine the rest."""
        lease_id, unclean = lease.id, self._unclean(lease, walk)
        facts = self._gather(lease) if unclean else None
        with self._ledger.write(release=True) as tx:
            record(tx, walk.done)
            tx.move_slices(lease_id, SliceState.FREE, only=_clean_slices(lease, unclean))
            if not unclean:
                tx.move_lease(lease_id, LeaseState.RELEASED)
                tx.event("released", uid=None, lease=lease_id)
                return
            why = "; ".join(sorted(set(unclean.values())))
            for slice_id, reason in unclean.items():
                tx.move_slices(lease_id, SliceState.QUARANTINED, only=[slice_id], reason=reason)
            tx.move_lease(lease_id, LeaseState.FAILED, reason=f"{lease.reason or 'ended'}; {why}")
            tx.event("quarantined", uid=None, lease=lease_id, reason=why)
            if walk.at is not None:
                evidence = {**(walk.at.evidence or {}), "in_the_way": facts}
                tx.mark_effect(walk.at.id, walk.at.state, evidence)
        log.warning("slice quarantined", lease=lease_id, why=why)

    def _gather(self, lease: Lease) -> Mapping[str, Json]:
        """What is in the way, for administrators. Where it cannot be told, quarantine goes on without."""
        try:
            return self._obstacles(lease)
        except (AgentError, OSError) as fault:
            return {"unknown": str(fault)}

    def _retry(self, lease_id: int) -> bool:
        lease = self._ledger.lease(lease_id)
        if lease is None or lease.state is not LeaseState.FAILED:
            return False
        walk = self._journal.undo(lease_id, TURN_SECONDS)
        clean = _clean_slices(lease, self._unclean(lease, walk))
        if clean or (walk.done and walk.pending is None):
            with self._ledger.write(release=True) as tx:
                record(tx, walk.done)
                tx.move_slices(lease_id, SliceState.FREE, only=clean)
                if clean:
                    tx.event("cleared", uid=None, lease=lease_id, reason="proved clean")
        return False

    def _unclean(self, lease: Lease, walk: Undoing) -> dict[int, str]:
        """By slice, why it is not proved clean. A pending effect puts all in doubt, unless it says which."""
        held = [one for one in lease.slices if one.state is not SliceState.FREE]
        unclean = {
            one.id: f"device {one.placed.device} is away; its slice waits until that is back"
            for one in held
            if self._away(one.placed.device)
        }
        pending = walk.pending
        if pending is not None:
            doubt = [one for one in held if pending.devices is None or one.placed.device in pending.devices]
            unclean |= {one.id: pending.why for one in doubt}
        return unclean


def _clean_slices(lease: Lease, unclean: Collection[int]) -> list[int]:
    return [one.id for one in lease.slices if one.state is not SliceState.FREE and one.id not in unclean]


def _quarantined_slices(lease: Lease | None) -> list[int]:
    return [one.id for one in lease.slices if one.state is SliceState.QUARANTINED] if lease else []


def quarantined(lease: Lease) -> bool:
    return any(held.state is SliceState.QUARANTINED for held in lease.slices)
