"""A model of the service in plain sets: grants, releases, attaches, expiries, crashes and reboots."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from service_builders import House, admin, check_sound, order_of
from service_world import DeathError, ScriptedEffect, TurnedClock

from nodeagent.domain.errors import StaleLease
from nodeagent.domain.lease import ENDED, AnchorKind, Lease, LeaseState
from nodeagent.domain.request import Policy, Request, Shape, SliceRequest
from nodeagent.service.orders import Granted, Queued

TTL = 100
DEATHS = (
    {"apply": [DeathError()]},
    {"apply": ["after"]},
    {"verify": ["after"]},
)


@dataclass
class Known:
    """What the model knows of one lease that still holds something, or waits for it."""

    state: LeaseState
    expires: bool
    attached: bool = False  # by the test's own process, which never ends
    held: list[tuple[str, frozenset[int], int, int]] = field(default_factory=list)


def sets_of(lease: Lease) -> list[tuple[str, frozenset[int], int, int]]:
    return [
        (held.placed.device, frozenset(held.placed.cus), held.placed.vram_bytes, held.placed.queue_slots)
        for held in lease.slices
    ]


SLICES = st.one_of(
    st.builds(
        SliceRequest, cus=st.integers(1, 64), shape=st.sampled_from(Shape), count=st.sampled_from((1, 1, 2))
    ),
    st.builds(SliceRequest, cu_percent=st.sampled_from((25.0, 50.0)), vram_bytes=st.just(1 << 30)),
    st.builds(SliceRequest, cu_shared=st.just(True), vram_bytes=st.just(1 << 30)),
    st.builds(SliceRequest, vram_percent=st.sampled_from((10.0, 40.0))),
    st.just(SliceRequest()),
)
REQUESTS = st.builds(
    Request, slices=st.tuples(SLICES), placement=st.sampled_from((Policy.BINPACK, Policy.SPREAD))
)


class ServiceMachine(RuleBasedStateMachine):
    """The whole service must agree with the sets after every step."""

    migrated: Path
    root: Path
    node = "vega10"
    missing = False  # whether a device is off the node

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="service-model-"))
        self.state = self.directory / "state"  # beside it lies what the agent keeps in /run
        self.state.mkdir(mode=0o700)
        shutil.copy(self.migrated, self.state / "ledger.sqlite3")
        self.clock, self.effect = TurnedClock(), ScriptedEffect()
        self.known: dict[int, Known] = {}
        self.past: set[tuple[int, str]] = set()  # leases with slices of a device's earlier epoch
        self.highest = 0
        self.build()

    def build(self) -> None:
        self.house = House(
            self.state, self.root, self.clock, name=self.node, effect=self.effect, timeout=0.02
        ).open()
        self.house.settle()

    def teardown(self) -> None:
        if hasattr(self, "house"):
            problems = self.house.ledger.check()
            self.house.die()
            shutil.rmtree(self.directory)
            assert problems == ()

    def pick(self, number: int, *states: LeaseState) -> int | None:
        ids = [lease for lease, known in self.known.items() if known.state in states]
        return ids[number % len(ids)] if ids else None

    def ended(self, lease_id: int) -> None:
        """What the model expects of a lease that was ended: free, or held on by the process in it."""
        known = self.known[lease_id]
        if known.attached:
            known.state = LeaseState.FAILED
        else:
            del self.known[lease_id]

    def booked(self, lease: Lease, *, expires: bool) -> None:
        assert lease.id > self.highest
        self.highest = lease.id
        self.known[lease.id] = Known(lease.state, expires, held=sets_of(lease))

    def held_of(self, device: str) -> list[tuple[int, Any]]:
        """Lease and part for all that is held of *device* in its present epoch."""
        return [
            (lease_id, part)
            for lease_id, known in self.known.items()
            for part in known.held
            if part[0] == device and (lease_id, device) not in self.past
        ]

    def disjoint(self, lease: Lease) -> None:
        """Nothing of a fresh lease is another's, but for the shared set."""
        for held in lease.slices:
            others = [part[1] for owner, part in self.held_of(held.placed.device) if owner != lease.id]
            mine = frozenset(held.placed.cus)
            assert all(not cus & mine or (held.placed.shared and cus == mine) for cus in others)

    @rule(request=REQUESTS, expires=st.booleans(), wait=st.sampled_from((0, 0, 60)))
    def grant(self, request: Request, expires: bool, wait: int) -> None:
        anchor = AnchorKind.TTL if expires else AnchorKind.EXTERNAL
        before = self.house.ledger.held()
        order = order_of(request=request, anchor=anchor, ttl=TTL if expires else None, wait=wait)
        outcome = self.house.agent.grant(admin(), order)
        if isinstance(outcome, Granted):
            assert outcome.lease.state is LeaseState.ACTIVE
            self.disjoint(outcome.lease)
            self.booked(outcome.lease, expires=expires)
        elif isinstance(outcome, Queued):
            self.booked(outcome.lease, expires=expires)
            assert self.house.ledger.held() == before
        else:
            assert self.house.ledger.held() == before
            assert self.known or self.missing, "an idle and whole node refuses none of these"

    @rule(request=REQUESTS, death=st.sampled_from(DEATHS))
    def grant_and_die(self, request: Request, death: dict[str, list[object]]) -> None:
        """Killed while granting: the next agent finishes the lease, or there never was one."""
        self.effect.script = {part: list(steps) for part, steps in death.items()}
        try:
            self.house.agent.grant(admin(), order_of(request=request, anchor=AnchorKind.EXTERNAL))
            died = False
        except DeathError:
            died = True
        self.effect.script = {}
        self.restart()
        if died:
            (lease,) = [one for one in self.house.ledger.live() if one.id > self.highest]
            assert lease.state is LeaseState.ACTIVE
            self.disjoint(lease)
            self.booked(lease, expires=False)

    @rule(number=st.integers(0, 20))
    def release(self, number: int) -> None:
        lease_id = self.pick(number, LeaseState.ACTIVE, LeaseState.QUEUED)
        if lease_id is not None:
            assert self.house.agent.release(admin(), lease_id, 10).state in ENDED
            self.ended(lease_id)

    @rule(number=st.integers(0, 20), death=st.sampled_from((DeathError(), "after")))
    def release_and_die(self, number: int, death: object) -> None:
        """Killed while releasing: the next agent ends it."""
        lease_id = self.pick(number, LeaseState.ACTIVE)
        if lease_id is not None:
            self.effect.script = {"undo": [death] * 100}
            self.house.agent.release(admin(), lease_id, 0)
            self.house.die()
            self.effect.script = {}
            self.restart()
            self.ended(lease_id)

    @rule(number=st.integers(0, 20))
    def release_again(self, number: int) -> None:
        lease_id = self.pick(number, LeaseState.FAILED)
        if lease_id is not None:
            assert self.house.agent.release(admin(), lease_id, 1).state is LeaseState.FAILED
            self.house.agent.clear_lease(admin(), lease_id)

    @precondition(lambda self: sum(known.attached for known in self.known.values()) < 2)
    @rule(number=st.integers(0, 20))
    def attach(self, number: int) -> None:
        lease_id = self.pick(number, LeaseState.ACTIVE)
        if lease_id is not None:
            self.house.agent.attach(admin(os.getpid()), lease_id)
            self.known[lease_id].attached = True

    @rule(number=st.integers(0, 20))
    def attach_late(self, number: int) -> None:
        lease_id = self.pick(number, LeaseState.FAILED)
        if lease_id is not None:
            try:
                self.house.agent.attach(admin(), lease_id)
            except StaleLease:
                return
            raise AssertionError("an ended lease was entered")

    @rule()
    def pass_time(self) -> None:
        """Every ttl runs out, and so does every wait."""
        self.clock.turn(TTL)
        self.look()
        for lease_id, known in list(self.known.items()):
            expired = known.state is LeaseState.ACTIVE and known.expires
            if lease_id not in self.granted_now and (expired or known.state is LeaseState.QUEUED):
                self.ended(lease_id)

    @rule()
    def look(self) -> None:
        """Those who wait and fit now are granted."""
        self.granted_now: set[int] = set()
        self.house.look()
        self.find_granted()

    def find_granted(self) -> None:
        for lease_id, known in self.known.items():
            lease = self.house.ledger.lease(lease_id)
            assert lease is not None
            if known.state is LeaseState.QUEUED and lease.state is LeaseState.ACTIVE:
                self.disjoint(lease)
                known.state, known.held = lease.state, sets_of(lease)
                self.granted_now.add(lease_id)

    @rule()
    def restart(self) -> None:
        """A start takes one look, which may grant those who wait."""
        self.house.die()
        self.build()
        self.granted_now = set()
        self.find_granted()

    @rule()
    def reboot(self) -> None:
        """Nothing outlives the boot, not even what was quarantined; its slice is proved free later."""
        self.house.die()
        self.clock.reboot()
        self.build()
        for held in self.house.ledger.quarantined():
            self.house.releaser.retry(held.lease).result(10)
        self.known.clear()

    @invariant()
    def agrees(self) -> None:
        """What the ledger holds is what the sets say, byte for byte."""
        if not hasattr(self, "house"):
            return
        found = [
            (one.lease, one.placed.device, frozenset(one.placed.cus), one.placed.vram_bytes)
            for one in self.house.ledger.held()
        ]
        expected = [
            (lease_id, device, cus, vram)
            for lease_id, known in self.known.items()
            for device, cus, vram, _ in known.held
        ]
        assert sorted(found, key=repr) == sorted(expected, key=repr), (found, expected)
        live = {lease.id: lease.state for lease in self.house.ledger.live()}
        assert live == {
            lease_id: known.state for lease_id, known in self.known.items() if known.state not in ENDED
        }, (live, self.known, [(e.kind, e.lease, e.reason) for e in self.house.ledger.events()][-8:])

    @invariant()
    def sound(self) -> None:
        """Told from the rows alone: no CU, byte or slot too many; what is free is the rest."""
        if not hasattr(self, "house"):
            return
        check_sound(self.house.ledger.held(), self.house)
        for device in self.house.agent.inventory().devices:
            taken = [part for _, part in self.held_of(device.key)]
            free = self.house.agent.free(device.key)
            assert set(free.cus) == set(range(device.cus)) - {cu for part in taken for cu in part[1]}
            assert free.queue_slots == device.queue_slots - sum(part[3] for part in taken)

    @invariant()
    def outside_agrees(self) -> None:
        """Outside, exactly the leases that hold something have their change in place or being undone."""
        if hasattr(self, "house"):
            active = {i for i, known in self.known.items() if known.state is LeaseState.ACTIVE}
            assert active <= self.effect.world <= set(self.known)
