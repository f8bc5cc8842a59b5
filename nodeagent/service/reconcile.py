"""Reconcile: look at the node and the ledger, and take the one action that each difference calls for.

Every event only wakes this; it reads the real state, so a lost event costs at most one period.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial

import structlog

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.domain.clock import SECOND_NS, Clock
from nodeagent.domain.device import DeviceState, Inventory
from nodeagent.domain.errors import AgentError
from nodeagent.domain.lease import Lease, LeaseState
from nodeagent.ledger.ledger import Ledger
from nodeagent.ledger.queries import REMEMBERED_NS
from nodeagent.service.anchoring import Anchors
from nodeagent.service.changes import Changes
from nodeagent.service.differences import Differences
from nodeagent.service.drains import Drains
from nodeagent.service.grant import Granter
from nodeagent.service.queue import Queue
from nodeagent.service.release import Releaser
from nodeagent.service.survey import Survey
from nodeagent.service.vigil import Listener, Vigil

log = structlog.get_logger()

PER_LEASE = ("lease", "queued")  # steps that are guarded for each lease by itself
KEEP_SECONDS = 90 * 86_400  # ended leases
KEEP_EVENTS = 1_000_000  # which are fewer than the bytes allow, unless hardly any says anything


@dataclass(frozen=True, slots=True)
class Periods:
    """Seconds."""

    look: float = 1.0  # between two looks at the whole node, and at the leases when nothing wakes it
    pause: float = 0.05  # least time between two looks at the leases
    share: float = 0.1  # of the time that looking may take: a storm of changes must not starve who makes it
    quarantine: float = 60.0  # between two proofs of a quarantined slice
    event_seconds: float = 90 * 86_400  # that events are kept, by the wall clock
    event_bytes: int = 200 << 20
    prune: float = 300.0  # root's grants have no rate: a prolog's loop adds 50 MB in that time


class Reconciler:
    """One thread that keeps ledger and reality together."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        survey: Survey,
        anchors: Anchors,
        granter: Granter,
        queue: Queue,
        releaser: Releaser,
        changes: Changes,
        differences: Differences,
        tree: CgroupTree | None,
        periods: Periods = Periods(),
        beat: Callable[[], None] = lambda: None,  # called when a step has ended, and at least once a look
        looks: Mapping[str, Callable[[], None]] = {},
        listeners: Mapping[str, Listener] = {},
        spared: Callable[[], bool] = lambda: False,
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._survey = survey
        self._anchors = anchors
        self._granter = granter
        self._line = queue
        self._releaser = releaser
        self._changes = changes
        self._differences = differences
        self._draining = Drains(ledger, clock, changes)
        self._periods = periods
        self._beat = beat
        self._spared = spared  # whether no lease is to be ended by itself now
        self._looks = dict(looks)  # what the means want done at each look, by name
        self._wake = threading.Event()
        self._changed: deque[int | None] = deque()  # leases to look at, None for all
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._listeners = dict(listeners)  # by name; what they heard is done in this order
        self._vigil = Vigil(self.wake, tree, self._listeners)
        self._last_ns: dict[str, int] = {}
        self._failing: dict[tuple[str, int], str] = {}  # step, and lease or 0

    def wake(self, lease_id: int | None = None) -> None:
        """Look soon: at the lease that changed, or at all of them."""
        self._changed.append(lease_id)
        self._wake.set()

    def listen(self) -> None:
        """Hear of news from now on, and what waited to be heard; again is harmless. After the last fork."""
        self._vigil.start()

    def start(self) -> None:
        self.listen()
        self._thread = threading.Thread(target=self._run, name="reconciler", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self.wake()
        if self._thread is not None:
            self._thread.join(timeout=5)
        self._vigil.stop()

    def recover(self) -> None:
        """Rebuild leases that a lost ledger forgot: before anybody takes their pools for idle."""
        self._guarded(self._compare, "compare")
        self._guarded(self._differences.clear, "clear")

    def scan(self) -> None:
        """Scan the node, if that is due."""
        self._guarded(self._topology, "topology")

    def run_once(self, changed: Collection[int | None] = (None,)) -> None:
        """One look, at everything that is due. A fault in one part does not keep the others from their turn.

        Of the leases all are looked at when the whole node is, else those *changed*; None among them: all.
        """
        # First: a lease of a device that was reset is lost, whatever else befell it.
        for name, listener in self._listeners.items():
            self._guarded(listener.act, name)
        if self._due("look", self._periods.look):
            # What no change of the ledger announces.
            for look in (self._ledger.reopen, self._topology, self._checkup, self._compare, self._drains):
                self._guarded(look, look.__name__.strip("_"))
            for name, further in self._looks.items():
                self._guarded(further, name)
            changed = (None,)
        self._guarded(partial(self._leases, None if None in changed else changed), "leases")
        self._guarded(self._queue, "queue")
        if self._due("quarantine", self._periods.quarantine):
            self._guarded(self._quarantine, "quarantine")

    def _guarded(self, step: Callable[[], object], name: str, lease: int = 0) -> None:
        """Run *step*; a fault is logged when it is a new one, not at every look.

        Any fault: without this thread nothing is reaped or granted from the queue, for nobody.
        """
        why, unforeseen = None, None
        try:
            step()
        except (AgentError, OSError) as fault:
            why = str(fault)
        except Exception as fault:
            why, unforeseen = repr(fault), fault
        if why != self._failing.get((name, lease)):
            if why is None:
                del self._failing[name, lease]
                log.info("a reconcile step works again", step=name, lease=lease or None)
            else:
                self._failing[name, lease] = why
                log.error(
                    "a reconcile step failed", step=name, lease=lease or None, why=why, exc_info=unforeseen
                )
        self._beat()

    def _due(self, step: str, seconds: float) -> bool:
        """Whether *step* has not run for *seconds*; if so, it counts as run now."""
        now = self._clock.boot_ns()
        if step in self._last_ns and now - self._last_ns[step] < seconds * SECOND_NS:
            return False
        self._last_ns[step] = now
        return True

    def _until(self, step: str, seconds: float) -> float:
        """Seconds until *step* is due."""
        return seconds - (self._clock.boot_ns() - self._last_ns.get(step, 0)) / SECOND_NS

    def _run(self) -> None:
        while not self._stop.is_set():
            woken = self._wake.wait(self._until("look", self._periods.look))
            self._wake.clear()
            if not self._stop.is_set():
                began = time.monotonic()
                self.run_once(self._drained())
                if self._due("prune", self._periods.prune):  # not in a look: a start is not to wait for it
                    self._guarded(self._prune, "prune")
                self._beat()
                took = time.monotonic() - began
                if woken:  # else the wait was a pause
                    self._stop.wait(
                        max(self._periods.pause, min(self._periods.look, took / self._periods.share))
                    )

    def _drained(self) -> set[int | None]:
        """What changed since the last look."""
        return {self._changed.popleft() for _ in range(len(self._changed))}

    def _topology(self) -> None:
        if self._survey.rescan_if_changed():
            self._changes.announce()

    def _checkup(self) -> None:
        if self._survey.checkup():
            self._changes.announce()

    def _compare(self) -> None:
        if self._differences.look():
            self._survey.rescan()  # what is known of its devices is as old as the lease

    def _drains(self) -> None:
        self._draining.look()

    def _leases(self, only: Collection[int | None] | None) -> None:
        """Look at all leases, or *only* at some; watch all that are active."""
        live = self._ledger.live()
        concerned = live if only is None else [lease for lease in live if lease.id in only]
        if concerned:
            inventory = self._survey.inventory()
            for lease in concerned:
                self._guarded(partial(self._one, lease, lost_device(lease, inventory)), "lease", lease.id)
        ended = {lease for step, lease in self._failing if step in PER_LEASE} - {lease.id for lease in live}
        for step, lease_id in [known for known in self._failing if known[1] in ended]:
            del self._failing[step, lease_id]
        self._vigil.keep([lease for lease in live if lease.state is LeaseState.ACTIVE])

    def _one(self, lease: Lease, lost: str | None) -> None:
        if lease.state is LeaseState.RELEASING:
            self._releaser.clean(lease.id)
            return
        if lease.state is LeaseState.QUEUED:
            self._queued(lease)
        elif not self._spared() and self._anchors.dead(lease):
            self._releaser.reap(lease.id, self._anchors.dead)
        elif lost and not self._spared():
            self._releaser.end(lease.id, uid=None, reason=lost, kind="lost")
        elif lease.state is LeaseState.PREPARING and not self._differences.strangers():
            self._granter.prepare(lease.id)

    def _queued(self, lease: Lease) -> None:
        waited = lease.wait_until_ns is not None and self._clock.boot_ns() >= lease.wait_until_ns
        over = self._anchors.gave_up(lease) or ("it waited as long as it may" if waited else None)
        if over:
            self._releaser.end(lease.id, uid=None, reason=over)

    def _queue(self) -> None:
        """Grant those who wait and whose turn it is.

        Nobody while there are strangers: after the restore of a backup, what is free in it may be theirs.
        """
        if self._differences.strangers():
            return
        self._line.look(self._granter.try_queued, lambda step, lease: self._guarded(step, "queued", lease))

    def _quarantine(self) -> None:
        for lease_id in {held.lease for held in self._ledger.quarantined()} | self._ledger.unfinished():
            self._releaser.retry(lease_id)

    def _prune(self) -> None:
        now = self._clock.wall()
        pruned = 1
        while pruned:  # a batch a transaction, so that nobody waits long for the writer
            with self._ledger.write(release=True) as tx:
                tx.forget_requests(self._clock.boot_ns() - REMEMBERED_NS)
                pruned = tx.prune(
                    leases_before=now - KEEP_SECONDS,
                    max_events=KEEP_EVENTS,
                    max_event_bytes=self._periods.event_bytes,
                    events_before=now - self._periods.event_seconds,
                )


def lost_device(lease: Lease, inventory: Inventory) -> str | None:
    """Why the lease lost a device: it vanished, or a mode change opened another epoch of it."""
    for held in lease.slices:
        device = inventory.device(held.placed.device)
        if device is None or device.state is DeviceState.GONE:
            return f"device {held.placed.device} vanished"
        if device.epoch != held.placed.epoch:
            return f"device {device.key} was partitioned anew"
    return None
