"""Idle leases over real processes in real cgroups, with KFD's figures of them written by the test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from service_builders import GIB, House, until, user
from test_watch import Figures, events, watch_of

from nodeagent.adapters.kfd_usage import PROC, sdma_us
from nodeagent.adapters.sysfs import SysTree
from nodeagent.domain.idle import FEWEST_LOOKS, Idle
from nodeagent.domain.lease import AnchorKind, HolderKind, LeaseState
from nodeagent.service.idle import IdleLeases, IdlePolicy
from nodeagent.service.watch import Watch

pytestmark = pytest.mark.cgroup2
STEP = 60  # seconds between two looks
AFTER = 20 * STEP
REPORT = IdlePolicy(AFTER)
RELEASE = IdlePolicy(AFTER, release=True, warn_seconds=5 * STEP)


class World:
    """A lease of 2 GiB with one process in its cgroup, and the looks at it."""

    def __init__(
        self, house: House, pid: int, policy: IdlePolicy, anchor: AnchorKind, **changes: Any
    ) -> None:
        self.house, self.pid = house, pid
        self.lease = house.grant(user(), cus=8, vram_bytes=2 * GIB, anchor=anchor)
        house.enter(self.lease, pid)
        if anchor is AnchorKind.CGROUP:
            with house.ledger.write() as tx:  # as its attaching does
                tx.set_anchor(self.lease.id, replace(self.lease.anchor, armed=True, deadline_ns=None))
        self.figures = Figures(house, self.lease)
        self.known: Mapping[int, Idle] = {}
        self.spared = False
        tree = SysTree(house.root)
        self.watch: Watch = watch_of(
            house,
            further=[
                IdleLeases(
                    house.ledger,
                    house.clock,
                    house.changes,
                    house.releaser,
                    lambda pids: sdma_us(tree, pids),
                    policy,
                    measured=lambda: tree.exists(PROC),
                    spared=lambda: self.spared,
                    known=self._keep,
                )
            ],
            **changes,
        )[0]

    def _keep(self, leases: Mapping[int, Idle]) -> None:
        self.known = leases

    def looks(self, count: int, **figures: int) -> None:
        """So many looks, a minute apart, at a process with these figures."""
        for _ in range(count):
            if figures:
                self.figures.set(self.pid, GIB, **figures)
            self.watch.look()
            self.house.clock.turn(STEP)

    @property
    def told(self) -> list[str | None]:
        return [event.reason for event in events(self.house, "lease_idle")]

    @property
    def state(self) -> LeaseState:
        return self.house.state(self.lease.id)


@pytest.fixture
def world(home: House, children) -> Any:
    """Makes the world under a policy."""

    def make(policy: IdlePolicy, anchor: AnchorKind = AnchorKind.CGROUP, **changes: Any) -> World:
        return World(home, children.sleeper().pid, policy, anchor, **changes)

    return make


def test_a_lease_without_work_is_told_of_once(world) -> None:
    """Memory and queues that it holds do not count; it is known for as long as it lasts, and goes on."""
    here = world(REPORT)
    here.looks(20, queues=1)
    assert here.told == [] and here.known == {}
    here.looks(20, queues=1)
    assert here.told == [f"no work on its GPUs for {AFTER} s"]
    (idle,) = here.known.values()
    assert idle.ends_ns is None and here.state is LeaseState.ACTIVE
    here.looks(1, queues=1, waves=4)
    assert here.known == {}
    here.looks(30, queues=1)
    assert len(here.told) == 2


def test_by_default_no_lease_is_idle(world) -> None:
    """The setting is off: nothing is told, known or ended."""
    here = world(IdlePolicy(release=True))
    here.looks(40, queues=1)
    assert here.told == [] and here.known == {} and here.state is LeaseState.ACTIVE


def test_a_site_may_release_idle_leases_after_a_warning(world) -> None:
    """The event says when; then the lease ends with the reason, and its process with it."""
    here = world(RELEASE)
    here.looks(21, queues=1)
    assert here.told == [f"no work on its GPUs for {AFTER} s; it ends in {5 * STEP} s unless it works"]
    here.looks(4, queues=1)
    assert here.state is LeaseState.ACTIVE
    here.looks(1, queues=1)
    until(lambda: here.state is LeaseState.RELEASED)
    assert "idle_ended" in here.house.kinds(here.lease)
    assert "idle" in (here.house.ledger.lease(here.lease.id).reason or "")


def test_work_after_the_warning_keeps_the_lease(world) -> None:
    """All begins anew: the time, and the warning."""
    here = world(RELEASE)
    here.looks(23, queues=1)
    here.looks(1, queues=1, waves=1)
    here.looks(19, queues=1)
    assert here.state is LeaseState.ACTIVE and len(here.told) == 1


@pytest.mark.parametrize("times", [1, 25])
def test_copies_are_work(world, times: int) -> None:
    """SDMA time that has grown since the lease came to rest: once, while it rested or after the warning."""
    here = world(RELEASE)
    here.looks(10, queues=1, sdma=5)
    for copied in range(times):
        here.looks(1, queues=1, sdma=6 + copied)
    here.looks(10, queues=1)
    assert here.told == [] and here.state is LeaseState.ACTIVE


def test_what_cannot_be_measured_is_never_idle(world) -> None:
    """A driver that counts no waves: queues may be at work. The lease is not told of, and not ended."""
    here = world(RELEASE)
    here.looks(1, queues=1)
    for file in (here.house.root / PROC / str(here.pid)).glob("stats_*/cu_occupancy"):
        file.unlink()
    here.looks(40)
    assert here.told == [] and here.state is LeaseState.ACTIVE


def test_without_the_kernels_counters_no_lease_is_idle(world) -> None:
    """A node that counts nothing sees no work, of anybody."""
    here = world(RELEASE)
    here.looks(40)
    assert not (here.house.root / PROC).exists()
    assert here.told == [] and here.state is LeaseState.ACTIVE


def test_a_holder_that_takes_a_gpu_and_never_uses_it_is_idle(world) -> None:
    """A forgotten shell: alive in its lease, without a process on any GPU."""
    here = world(REPORT)
    (here.house.root / PROC).mkdir(parents=True)
    here.looks(30)
    assert len(here.told) == 1


def test_a_lease_that_its_holder_has_not_begun_is_not_idle(world) -> None:
    """Held by time alone, and never seen on a GPU; from then on it can be."""
    here = world(REPORT, AnchorKind.TTL)
    (here.house.root / PROC).mkdir(parents=True)
    here.looks(40)
    assert here.told == []
    here.looks(1, queues=1)
    here.figures.end(here.pid)
    here.looks(30)
    assert len(here.told) == 1


def test_a_lease_whose_holder_may_be_elsewhere_is_not_idle(world, children) -> None:
    """Nobody's processes use its device, and none of its own are seen: they may be its holder's."""
    here = world(RELEASE)
    stranger = children.sleeper().pid
    here.figures.set(stranger, GIB, queues=1)
    here.looks(40)
    assert here.told == [] and here.state is LeaseState.ACTIVE


@pytest.mark.parametrize(("exempt", "told"), [(HolderKind.CLIENT, 0), (HolderKind.SLURM, 1)])
def test_kinds_of_holders_may_be_exempt(world, exempt: HolderKind, told: int) -> None:
    """They are neither told of nor ended; Slurm's jobs are so by default."""
    here = world(IdlePolicy(AFTER, exempt=frozenset({exempt})))
    assert here.lease.holder.kind is HolderKind.CLIENT
    here.looks(30, queues=1)
    assert len(here.told) == told
    assert IdlePolicy().exempt == {HolderKind.SLURM}


def test_while_bypassed_no_idle_lease_ends(world) -> None:
    """It is told of, and ends once the bypass is over."""
    here = world(RELEASE)
    here.spared = True
    here.looks(40, queues=1)
    assert len(here.told) == 1 and here.state is LeaseState.ACTIVE
    here.spared = False
    here.looks(1, queues=1)
    until(lambda: here.state is LeaseState.RELEASED)


def test_few_looks_are_no_proof(world) -> None:
    """However short the time that a site allows, or long the machine slept."""
    here = world(IdlePolicy(1))
    here.looks(FEWEST_LOOKS, queues=1)
    assert here.told == []
    here.looks(1, queues=1)
    assert len(here.told) == 1
