"""Looks after guests while their lease lives: binds, arms and ends them. With the lease its journal does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import structlog

from nodeagent.adapters.container_files import ContainerFiles
from nodeagent.adapters.container_processes import LeaseMounts
from nodeagent.adapters.processes import alive
from nodeagent.domain.clock import Clock
from nodeagent.domain.container import Engine, Life, Seen
from nodeagent.domain.lease import LeaseState
from nodeagent.domain.records import EffectState, Json
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.bearers import Bearers, bearing
from nodeagent.service.changes import Changes
from nodeagent.service.effects import Journal, Pending
from nodeagent.service.guest_records import GUEST, Guest, guests_in
from nodeagent.service.locks import LeaseLocks

log = structlog.get_logger()


class Guests:
    """What becomes of them is written into their entries; *keep* is told of each lease that has changed."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        bearers: Bearers,
        files: ContainerFiles,
        mounts: LeaseMounts,
        journal: Journal,
        locks: LeaseLocks,
        changes: Changes,
        keep: Callable[[int], None] = lambda lease: None,
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._bearers = bearers
        self._files = files
        self._mounts = mounts
        self._journal = journal
        self._locks = locks
        self._changes = changes
        self._keep = keep

    def of(self, leases: Iterable[int]) -> list[Guest]:
        """The guests of *leases*."""
        journals = self._ledger.journals(leases, (GUEST,)).values()
        return [guest for journal in journals for guest in guests_in(journal)]

    def look(self, guests: Iterable[Guest]) -> None:
        """Bind, arm or end each of *guests*."""
        for guest in guests:
            with self._locks.of(guest.lease):
                now = self._now(guest)
                if now is not None and self._look_at(now):
                    self._keep(guest.lease)
                    self._changes.announce(guest.lease)

    def end(self, guest: Guest, why: str) -> bool:
        """Take back what *guest* was given, stop its container, and forget it. Hold the lease's lock.

        False: that takes longer, and is gone on with at the next look. The lease itself goes on.
        """
        if guest.ending is None:
            guest = self._noted(guest, ending=why)
        outcome = self._journal.undo_one(guest.entry)
        if isinstance(outcome, Pending):
            return False
        with self._ledger.write(release=True) as tx:
            tx.mark_effect(outcome.record.id, EffectState.UNDONE, outcome.evidence)
            tx.forget_effect(outcome.record.id)  # the events keep it: a job may start thousands
            data: dict[str, Json] = {"container": guest.held.id, "guest": guest.number}
            tx.event("guest_ended", uid=None, lease=guest.lease, reason=guest.ending, data=data)
        return True

    def _now(self, guest: Guest) -> Guest | None:
        """As it is now; None where it, or its lease, is over: its journal is walked then."""
        lease = self._ledger.lease(guest.lease)
        if lease is None or lease.state is not LeaseState.ACTIVE:
            return None
        found = guests_in(self._ledger.effects(guest.lease))
        return next((one for one in found if one.number == guest.number), None)

    def _look_at(self, guest: Guest) -> bool:
        """Whether anything has changed."""
        found = self._found(guest)
        if found is not None:
            self._files.bind(guest.lease, found.id, guest.number)
            log.info("a container is bound", lease=guest.lease, guest=guest.number, container=found.id[:12])
            guest = self._noted(guest, "bound", container=found.id)
        life = self._bearers.engines.life(guest.held)
        why = self._over(guest, life)
        if why is not None:
            return self.end(guest, why) or guest.ending is None
        if life is Life.ALIVE and not guest.armed:
            self._noted(guest, armed=True)
            return True
        return found is not None

    def _found(self, guest: Guest) -> Seen | None:
        """The container to bind: the first one with the ticket, or as the plugin saw it spent."""
        sight = self._bearers.engines.sight(guest.held.engine)
        if sight is None or guest.held.id is not None or guest.ending is not None:
            return None
        taken = self._files.bound(guest.lease, guest.number)
        known: Sequence[Seen] = [one for one in bearing(guest.ticket, sight) if taken in (None, one.id)]
        return known[0] if known else None

    def _over(self, guest: Guest, life: Life) -> str | None:
        """Why it is over, or None while it may be there. An engine that is down is no container's end."""
        held = guest.held
        if guest.ending is not None:
            return guest.ending
        if guest.entry.state is not EffectState.VERIFIED:
            return "the agent ended while it was let in"
        if held.engine is Engine.NERDCTL:
            return self._gone(guest)
        if held.id is not None and life is Life.ENDED:
            return f"container {held.id[:12]} ended"
        if not guest.armed and life is not Life.ALIVE and self._clock.boot_ns() >= guest.deadline_ns:
            return "nothing started in it before its start deadline"
        if held.id is None and guest.asker is not None and not alive(*guest.asker):
            none = self._bearers.none_shows(guest.ticket, held.engine)
            return f"process {guest.asker[0]} ended" if none else None
        return None

    def _gone(self, guest: Guest) -> str | None:
        """Of an engine that cannot be asked: by the note among its processes' mounts."""
        if guest.asker is None or alive(*guest.asker):
            return None
        place = (guest.lease, guest.number)
        return None if place in self._mounts.places().values() else f"process {guest.asker[0]} ended"

    def _noted(self, guest: Guest, event: str | None = None, **facts: Json) -> Guest:
        """Write *facts* into its entry; the guest as it is then."""
        entry = guest.entry
        evidence = {**(entry.evidence or {}), **facts}
        with self._ledger.write(release=True) as tx:
            tx.mark_effect(entry.id, entry.state, evidence)
            if event is not None:
                tx.event(event, uid=None, lease=guest.lease, data={**facts, "guest": guest.number})
        (read,) = guests_in([replace(entry, evidence=evidence)])
        return read
