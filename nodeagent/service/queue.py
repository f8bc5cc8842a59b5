"""The queue: whose turn it is, what is kept for those at its head, and what each of them can expect.

Waiting costs nobody a thread and holds nothing: the reconciler takes a look at the queue, and what it saw is
what new requests, renewals and readers go by until the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from nodeagent.domain.clock import SECOND_NS, Clock
from nodeagent.domain.device import Inventory
from nodeagent.domain.lease import HeldSlice, HolderKind, Lease, LeaseState
from nodeagent.domain.ownership import Asker
from nodeagent.domain.queue import (
    Ground,
    Outlook,
    Reservation,
    Turn,
    Waiting,
    in_order,
    leaves,
    outlook,
    positions,
    unkept,
)
from nodeagent.domain.request import Request
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.allowance import Allowance
from nodeagent.service.survey import Survey

REMEMBERED_EVENTS = 1000
REMEMBERED_OWNERS = 4096
LOOK_SECONDS = 1.0  # of this thread, for all outlooks of one look: those further back keep their last one
SLOW_SECONDS = 0.5  # the same for one
SLOW_REST_NS = 60 * SECOND_NS  # that whoever asked for what takes longer gets none
Kept = tuple[Reservation, ...]
Attempt = Callable[[Lease, Kept], Turn]  # grant it beside what is kept for those before it, if it fits
Guarded = Callable[[Callable[[], object], int], None]  # a fault of one lease is no other's


@dataclass(frozen=True, slots=True)
class Standing:
    """What one who waits can expect."""

    position: int
    earliest_ns: int | None = None  # boot time; None: nobody knows


@dataclass(slots=True)
class _Look:
    """One look at the queue, as far as it has come."""

    now_ns: int
    ground: Ground
    held: tuple[HeldSlice, ...]
    candidates: dict[tuple[Request, Asker], frozenset[str]] = field(default_factory=dict)
    kept: list[Reservation] = field(default_factory=list)
    line: list[tuple[int, frozenset[str]]] = field(default_factory=list)
    earliest: dict[int, int | None] = field(default_factory=dict)
    seconds: float = 0.0  # spent on outlooks

    def candidates_of(self, waiting: Waiting) -> frozenset[str]:
        asked = (waiting.request, waiting.asker)
        if asked not in self.candidates:
            self.candidates[asked] = self.ground.candidates(waiting)
        return self.candidates[asked]


@dataclass(frozen=True, slots=True)
class _Known:
    """An outlook, and what it was worked out from."""

    inventory: Inventory
    held: tuple[HeldSlice, ...]
    devices: frozenset[str]
    outlook: Outlook | None


class Queue:
    """Remembers the last look. *keep_seconds*: see `Allowance`; 0 keeps nothing for anybody."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        survey: Survey,
        owner_of: Callable[[int], int],
        shared_cu_percent: float,
        keep_seconds: float,
        groups_of: Callable[[int, int | None], frozenset[int]] = lambda owner, gid: frozenset(),
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._survey = survey
        self._owner_of = owner_of
        self._groups_of = groups_of  # of an owner and its gid: those that the site's settings name
        self._shared_cu_percent = shared_cu_percent
        self._allowance = Allowance(int(keep_seconds * SECOND_NS))
        self._served: dict[int, int] | None = (
            None  # by owner, the number of its last turn; None: not read yet
        )
        self._kept: Kept = ()
        self._standings: Mapping[int, Standing] = {}
        self._known: dict[tuple[int, bool], _Known] = {}
        self._slow: dict[int, int] = {}  # by owner, until when none of its outlooks is worked out

    def kept(self, request: Request, kind: HolderKind) -> Kept:
        """What is kept from a request that comes now."""
        now = self._clock.boot_ns()
        return tuple(one for one in self._kept if one.binds(request, kind, now))

    def standing(self, lease_id: int) -> Standing | None:
        """What a lease that waits can expect; None where it was not looked at yet."""
        return self._standings.get(lease_id)

    def place(self, lease: Lease) -> None:
        """Find the place of one that came just now, for its first answer; the next look knows more."""
        if lease.id in self._standings:
            return
        now = self._clock.boot_ns()
        look = _Look(now, Ground(self._survey.inventory(), self._shared_cu_percent), ())
        waiting = map(self._waiting, self._ledger.live(LeaseState.QUEUED))
        for one in in_order(waiting, now, self._served or {}):
            look.line.append((one.lease, look.candidates_of(one)))
            if one.lease == lease.id:
                position = positions(look.line)[lease.id]
                self._standings = {**self._standings, lease.id: Standing(position)}
                return

    def latest_ns(self, lease: Lease) -> int | None:
        """Until when *lease* may be renewed at most, as it came after one that waits for it to end.

        0 where that is as long as it has already; None where nobody waits for it.
        """
        passed = [one for one in self.kept(lease.request, lease.holder.kind) if one.waiting.lease < lease.id]
        if not passed:
            return None
        ground = Ground(self._survey.inventory(), self._shared_cu_percent)
        others = [one for one in self._ledger.held() if one.lease != lease.id]
        its = [one.placed for one in lease.slices]
        starts = [
            one.outlook.starts_ns or 0
            for one in passed
            if lease.id in one.outlook.ends or not leaves(one, ground, others, its, None)
        ]
        return min(starts, default=None)

    def look(self, attempt: Attempt, guarded: Guarded) -> None:
        """Grant those whose turn it is, and find out what the others wait for."""
        now = self._clock.boot_ns()
        self._allowance.pass_time(now)
        leases = {lease.id: lease for lease in self._ledger.live(LeaseState.QUEUED)}
        if leases:
            ground = Ground(self._survey.inventory(), self._shared_cu_percent)
            look = _Look(now, ground, self._ledger.held())
            for waiting in in_order(map(self._waiting, leases.values()), now, self._turns()):
                guarded(partial(self._turn, look, waiting, leases[waiting.lease], attempt), waiting.lease)
            self._remember(look)
        else:
            self._kept, self._standings, self._known = (), {}, {}
        self._slow = {owner: until for owner, until in self._slow.items() if now < until}
        bound = (one.waiting for one in self._kept if not one.waiting.privileged)
        self._allowance.keep({waiting.owner for waiting in bound})

    def _waiting(self, lease: Lease) -> Waiting:
        owner = self._owner_of(lease.holder.uid)
        groups = self._groups_of(owner, lease.gid)
        return Waiting(lease.id, owner, lease.holder.kind, lease.request, lease.created_ns, groups)

    def _turns(self) -> dict[int, int]:
        """By owner, the number of its last turn: after a start, those that the newest events tell of."""
        if self._served is None:
            self._served = {}
            for event in self._ledger.events(limit=REMEMBERED_EVENTS, newest=True):
                if event.kind == "granted" and event.uid is not None:
                    self._serve(self._owner_of(event.uid))
        return self._served

    def _serve(self, owner: int) -> None:
        served = self._turns()
        last = next(reversed(served.values()), 0)
        served.pop(owner, None)
        served[owner] = last + 1
        while len(served) > REMEMBERED_OWNERS:
            del served[next(iter(served))]

    def _turn(self, look: _Look, waiting: Waiting, lease: Lease, attempt: Attempt) -> None:
        before = () if waiting.kind is HolderKind.SLURM else tuple(look.kept)
        turn = attempt(lease, before)
        if turn is Turn.TAKEN:
            self._kept = tuple(one for one in self._kept if one.waiting.lease != lease.id)
            look.held = self._ledger.held()
            self._serve(waiting.owner)
            return
        look.line.append((lease.id, look.candidates_of(waiting)))
        if turn is Turn.OVER_QUOTA:
            return
        devices = unkept(look.ground.inventory, look.kept)
        if found := self._outlook(look, waiting, devices):
            look.earliest[lease.id] = found.starts_ns
            if until := self._keeps_until(look, waiting, lease, found):
                look.kept.append(Reservation(waiting, found, until))
        elif look.kept:
            look.earliest[lease.id] = self._behind(look, waiting)

    def _behind(self, look: _Look, waiting: Waiting) -> int | None:
        """The earliest start of one that waits for what is kept for others: not before theirs."""
        found = self._outlook(look, waiting, frozenset(one.key for one in look.ground.inventory.devices))
        if found is None or found.starts_ns is None:
            return None
        starts = [found.starts_ns]
        for one in look.kept:
            if one.outlook.devices & found.devices or one.outlook.pools & found.pools:
                if one.outlook.starts_ns is None:
                    return None
                starts.append(one.outlook.starts_ns)
        return max(starts)

    def _keeps_until(self, look: _Look, waiting: Waiting, lease: Lease, found: Outlook) -> int | None:
        """Until when devices are kept for *waiting*; None where none are.

        None for who stands in its own way: it could end its own lease, and so keep others out for ever.
        """
        wait_until = look.now_ns if lease.wait_until_ns is None else lease.wait_until_ns
        if waiting.privileged:
            return wait_until
        if any(one.lease in found.ends and self._owner_of(one.uid) == waiting.owner for one in look.held):
            return None
        left = self._allowance.left_ns(waiting.owner)
        return min(wait_until, look.now_ns + left) if left else None

    def _outlook(self, look: _Look, waiting: Waiting, devices: frozenset[str]) -> Outlook | None:
        """The outlook on *devices*, on the same ones as at the last look if they will do."""
        candidates = devices & look.candidates_of(waiting)
        key = (waiting.lease, len(devices) == len(look.ground.inventory.devices))
        last = self._known.get(key)
        fresh = last is not None and (last.inventory, last.held, last.devices) == (
            look.ground.inventory,
            look.held,
            candidates,
        )
        if last is not None and fresh:
            return last.outlook
        if not candidates or look.now_ns < self._slow.get(waiting.owner, 0):
            return None
        before = last.outlook.devices if last is not None and last.outlook is not None else frozenset()
        if look.seconds > LOOK_SECONDS:
            return last.outlook if last is not None and before <= candidates else None
        began, found = time.thread_time(), None

        def enough() -> bool:
            return time.thread_time() - began > SLOW_SECONDS

        if before and before <= candidates:  # else renewals could have it wait now here, now there
            found = outlook(look.ground, waiting, look.held, look.now_ns, before, enough)
        if found is None:
            found = outlook(look.ground, waiting, look.held, look.now_ns, candidates, enough)
        look.seconds += time.thread_time() - began
        if enough():
            self._slow[waiting.owner] = look.now_ns + SLOW_REST_NS
        self._known[key] = _Known(look.ground.inventory, look.held, candidates, found)
        return found

    def _remember(self, look: _Look) -> None:
        self._kept = tuple(look.kept)
        self._standings = {
            lease: Standing(position, look.earliest.get(lease))
            for lease, position in positions(look.line).items()
        }
        self._known = {key: known for key, known in self._known.items() if key[0] in self._standings}
