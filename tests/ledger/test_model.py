"""Any sequence of grants, moves, crashes, restarts and reboots, against a model of plain sets."""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import ledger_builders as build
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from ledger_builders import CARD, GIB, OTHER, activated, opened

from nodeagent.domain.cuset import CuSet
from nodeagent.domain.errors import IllegalMove, LedgerConflict
from nodeagent.domain.lease import LEASE_MOVES, SLICE_MOVES, LeaseState, PlacedSlice, SliceState
from nodeagent.ledger.ledger import Ledger
from nodeagent.ledger.queries import Queries

CUS, SLOTS, POOL = 12, 6, 10
LIVE = (SliceState.HELD, SliceState.CLEANING, SliceState.QUARANTINED)


@dataclass
class Part:
    """What the model knows of one slice; VRAM in GiB."""

    device: str
    epoch: int
    cus: frozenset[int]
    shared: bool
    exclusive: bool
    vram: int
    slots: int
    state: SliceState = SliceState.HELD

    @property
    def live(self) -> bool:
        return self.state is not SliceState.FREE

    def placed(self) -> PlacedSlice:
        return build.placed(
            str(CuSet.of(self.cus)),
            device=self.device,
            epoch=self.epoch,
            shared=self.shared,
            exclusive=self.exclusive,
            vram_bytes=self.vram * GIB,
            queue_slots=self.slots,
        )


@dataclass
class Known:
    """What the model knows of one lease."""

    state: LeaseState
    parts: list[Part] = field(default_factory=list)


PARTS = st.builds(
    Part,
    device=st.sampled_from((CARD, OTHER)),
    epoch=st.just(0),
    cus=st.frozensets(st.integers(0, CUS), max_size=4),
    shared=st.integers(0, 3).map(lambda n: n == 0),
    exclusive=st.integers(0, 5).map(lambda n: n == 0),
    vram=st.integers(0, 4),
    slots=st.integers(0, 3),
)


class LedgerMachine(RuleBasedStateMachine):
    """The ledger must agree with the sets after every step."""

    migrated: Path
    leases = Bundle("leases")

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="ledger-model-"))
        shutil.copy(self.migrated, self.directory / "ledger.db")
        self.clock = build.TurnedClock()
        self.ledger = Ledger(self.directory / "ledger.db", self.clock)
        self.ledger.open()
        self.epochs = {CARD: 0, OTHER: 0}
        self.known: dict[int, Known] = {}
        with self.ledger.write() as tx:
            tx.register(
                [build.device(key, cus=CUS, slots=SLOTS) for key in self.epochs],
                [build.pool(grantable_bytes=POOL * GIB)],
            )

    def teardown(self) -> None:
        if hasattr(self, "directory"):
            problems = self.ledger.check()
            self.ledger.close()
            shutil.rmtree(self.directory)
            assert problems == ()

    def live_parts(self) -> list[Part]:
        return [part for each in self.known.values() for part in each.parts if part.live]

    def fits(self, wanted: list[Part]) -> bool:
        """Whether the rules allow *wanted*, one after the other, beside what is live."""
        held = self.live_parts()
        for part in wanted:
            here = [one for one in held if (one.device, one.epoch) == (part.device, part.epoch)]
            if not self.fits_one(part, here, sum(one.vram for one in held)):
                return False
            held.append(part)
        return True

    def fits_one(self, part: Part, here: list[Part], vram: int) -> bool:
        shared = {one.cus for one in here if one.shared}
        foreign = [one for one in here if not (one.shared and part.shared)]
        return (
            all(cu < CUS for cu in part.cus)
            and not any(one.cus & part.cus for one in foreign)
            and not (part.shared and shared - {part.cus})
            and vram + part.vram <= POOL
            and sum(one.slots for one in here) + part.slots <= SLOTS
            and not any(one.exclusive or part.exclusive for one in here)
        )

    @rule(target=leases, parts=st.lists(PARTS, min_size=1, max_size=2), crash=st.booleans())
    def open_lease(self, parts: list[Part], crash: bool) -> int:
        fresh = [Part(p.device, self.epochs[p.device], *self.rest(p)) for p in parts]
        highest = max(self.known, default=0)
        try:
            with self.ledger.write() as tx:
                lease = opened(tx, *(part.placed() for part in fresh))
                if crash:
                    raise ConnectionAbortedError
        except LedgerConflict:
            assert not self.fits(fresh)
            return 0
        except ConnectionAbortedError:
            assert self.fits(fresh)
            return 0
        assert self.fits(fresh)
        assert lease > highest
        self.known[lease] = Known(LeaseState.PREPARING, fresh)
        return lease

    @staticmethod
    def rest(part: Part) -> tuple[frozenset[int], bool, bool, int, int]:
        return (part.cus, part.shared, part.exclusive, part.vram, part.slots)

    @rule(target=leases)
    def queue(self) -> int:
        with self.ledger.write() as tx:
            lease = opened(tx, state=LeaseState.QUEUED)
        assert lease > max(self.known, default=0)
        self.known[lease] = Known(LeaseState.QUEUED)
        return lease

    @rule(lease=leases, part=PARTS)
    def place(self, lease: int, part: Part) -> None:
        if lease not in self.known:
            return
        fresh = Part(part.device, self.epochs[part.device], *self.rest(part))
        legal = self.known[lease].state is LeaseState.QUEUED
        try:
            with self.ledger.write() as tx:
                tx.place(lease, [fresh.placed()])
        except IllegalMove:
            assert not legal
        except LedgerConflict:
            assert not self.fits([fresh])
        else:
            assert legal
            assert self.fits([fresh])
            self.known[lease] = Known(LeaseState.PREPARING, [fresh])

    @rule(lease=leases, to=st.sampled_from(list(LeaseState)))
    def move_lease(self, lease: int, to: LeaseState) -> None:
        if lease not in self.known:
            return
        known = self.known[lease]
        states = {part.state for part in known.parts}
        legal = (
            to in LEASE_MOVES[known.state]
            and not (to in (LeaseState.RELEASED, LeaseState.FAILED) and states & set(LIVE[:2]))
            and not (to is LeaseState.RELEASED and states - {SliceState.FREE})
            and not (to is LeaseState.ACTIVE and states != {SliceState.HELD})
        )
        try:
            with self.ledger.write() as tx:
                activated(tx, lease) if to is LeaseState.ACTIVE else tx.move_lease(lease, to)
        except IllegalMove:
            assert not legal
        else:
            assert legal
            known.state = to

    @rule(lease=leases, to=st.sampled_from(list(SliceState)), crash=st.booleans())
    def move_slices(self, lease: int, to: SliceState, crash: bool) -> None:
        if lease not in self.known:
            return
        moved = [part for part in self.known[lease].parts if part.state not in (SliceState.FREE, to)]
        legal = all(to in SLICE_MOVES[part.state] for part in moved)
        try:
            with self.ledger.write(release=True) as tx:
                tx.move_slices(lease, to)
                if crash:
                    raise ConnectionAbortedError
        except IllegalMove:
            assert not legal
        except ConnectionAbortedError:
            assert legal
        else:
            assert legal
            for part in moved:
                part.state = to

    @rule()
    def restart(self) -> None:
        self.ledger.close()
        self.ledger.open()

    @rule()
    def die(self) -> None:
        """Another process takes over the files while the old connections were never closed."""
        left = self.ledger
        self.ledger = Ledger(self.directory / "ledger.db", self.clock)
        self.ledger.open()
        left.close()

    @rule()
    def reboot(self) -> None:
        self.ledger.close()
        self.clock.boot_id += "x"
        self.clock.now_ns = 1
        self.ledger.open()

    @precondition(lambda self: sum(self.epochs.values()) < 3)
    @rule(device=st.sampled_from((CARD, OTHER)))
    def new_epoch(self, device: str) -> None:
        self.epochs[device] += 1
        with self.ledger.write() as tx:
            found = build.device(device, epoch=self.epochs[device], cus=CUS, slots=SLOTS)
            tx.register([found], [])

    @invariant()
    def agrees(self) -> None:
        """Held slices, states and bytes are the model's."""
        if not hasattr(self, "ledger"):
            return
        found = [
            (one.lease, one.placed.device, one.placed.epoch, frozenset(one.placed.cus), one.state)
            for one in self.ledger.held()
        ]
        expected = [
            (lease, part.device, part.epoch, part.cus, part.state)
            for lease, known in self.known.items()
            for part in known.parts
            if part.live
        ]
        assert sorted(found, key=repr) == sorted(expected, key=repr)
        states = {each.id: each.state for each in self.ledger.leases(limit=1000)}
        assert states == {lease: known.state for lease, known in self.known.items()}

    @invariant()
    def what_is_kept_in_memory_is_what_the_rows_say(self) -> None:
        """Each commit, and no transaction that was given up, has come into it."""
        if not hasattr(self, "ledger"):
            return
        for ask in (Queries.held, Queries.live, Queries.present, Queries.drains):
            assert ask(self.ledger) == getattr(self.ledger, ask.__name__)()
        assert all(Queries.lease(self.ledger, each) == self.ledger.lease(each) for each in self.known)

    @invariant()
    def nothing_is_held_twice(self) -> None:
        """Told from the rows alone: no CU, byte or slot too many."""
        if not hasattr(self, "ledger"):
            return
        cus: dict[tuple[str, int], list[int]] = defaultdict(list)
        slots: dict[tuple[str, int], int] = defaultdict(int)
        seen: set[tuple[str, int]] = set()
        for one in Queries.held(self.ledger):
            here = (one.placed.device, one.placed.epoch)
            slots[here] += one.placed.queue_slots
            if not (one.placed.shared and here in seen):
                cus[here] += one.placed.cus
            if one.placed.shared:
                seen.add(here)
        assert all(len(each) == len(set(each)) for each in cus.values())
        assert all(each <= SLOTS for each in slots.values())
        assert sum(one.placed.vram_bytes for one in Queries.held(self.ledger)) <= POOL * GIB


def test_no_sequence_of_acts_breaks_the_ledger(migrated: Path) -> None:
    """After any sequence of grants, moves, crashes, restarts and reboots the ledger equals plain sets."""
    machine = type("Machine", (LedgerMachine,), {"migrated": migrated})
    thorough = settings().max_examples > 100
    run_state_machine_as_test(
        machine,
        settings=settings() if thorough else settings(max_examples=20, stateful_step_count=30),
    )
