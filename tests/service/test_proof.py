"""The end of a lease: processes are asked first, and memory is proved back before its slice is free."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest
from service_builders import House, until, user
from service_world import ScriptedEffect

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.domain.lease import LeaseState, SliceState
from nodeagent.domain.request import Request, SliceRequest
from nodeagent.domain.watch import DrmClient, KfdUse
from nodeagent.service.cgroup_effects import OccupantsEffect
from nodeagent.service.effects import Pending
from nodeagent.service.grace import Grace, GracePeriods
from nodeagent.service.proof import KfdEffect, VramEffect
from nodeagent.service.sampling import Sampler, Sources

GIB, MIB = 1 << 30, 1 << 20
NO_PID = 4_194_303  # pid_max is at most one more, and nobody gets that far here
LEASE = 7


class Parting:
    """The occupants of one real cgroup, under a clock that the test turns."""

    def __init__(self, tree: CgroupTree, grace: Grace, *, lost: bool) -> None:
        self.now = 0.0
        self.tree = tree
        self.ref = tree.create(LEASE)
        self.effect = OccupantsEffect(tree, GracePeriods(grace, lambda: self.now, lambda lease: lost))
        self.children: list[subprocess.Popen[str]] = []

    def child(self, script: str) -> subprocess.Popen[str]:
        """A process in the cgroup that has set its traps."""
        child = subprocess.Popen(
            ["sh", "-c", f"{script}; echo up; while :; do sleep 0.05; done"],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        with self.tree.open(self.ref) as cgroup:
            cgroup.move(child.pid)
        return child

    def undo(self) -> object:
        return self.effect.undo({"lease": LEASE}, {"path": self.ref.path, "inode": self.ref.inode})


@pytest.fixture
def part(tree: CgroupTree) -> Iterator[Callable[..., Parting]]:
    made: list[Parting] = []

    def make(grace: Grace, *, lost: bool = False) -> Parting:
        made.append(Parting(tree, grace, lost=lost))
        return made[-1]

    yield make
    for parting in made:
        for child in parting.children:
            child.kill()
            child.wait()
            child.stdout.close()


@pytest.mark.cgroup2
class TestGrace:
    """Signals in their order, each with its time."""

    def test_a_process_that_heeds_sigterm_is_not_killed(self, part) -> None:
        """It unwinds and ends by itself; until then the release waits on purpose."""
        parting = part(Grace(terminate_seconds=60))
        child = parting.child("trap 'exit 9' TERM")
        told = parting.undo()
        assert isinstance(told, Pending)
        assert (told.patient, "SIGTERM" in told.why) == (True, True)
        assert child.wait(20) == 9
        assert until(lambda: parting.undo() == {"populated": False})

    def test_who_ignores_it_is_killed_when_the_time_is_up(self, part) -> None:
        """Not before, and then whatever it does."""
        parting = part(Grace(terminate_seconds=60))
        child = parting.child("trap '' TERM INT")
        assert parting.undo().patient
        parting.now = 59
        assert parting.undo().patient
        assert child.poll() is None
        parting.now = 61
        told = parting.undo()
        assert told == {"populated": False} or not told.patient
        assert child.wait(20) == -9

    def test_sigint_comes_first_where_the_site_says_so(self, part) -> None:
        """A program that unwinds on SIGINT, as Python's do, never sees SIGTERM."""
        parting = part(Grace(interrupt_seconds=10, terminate_seconds=10))
        child = parting.child("trap 'exit 3' INT; trap 'exit 4' TERM")
        assert "SIGINT" in parting.undo().why
        assert child.wait(20) == 3

    def test_a_stopped_process_hears_it_too(self, part) -> None:
        """SIGCONT follows the signal."""
        parting = part(Grace(terminate_seconds=60))
        child = parting.child("trap 'exit 9' TERM")
        child.send_signal(19)
        parting.undo()
        assert child.wait(20) == 9

    def test_a_lost_lease_gets_the_signal_of_its_own(self, part) -> None:
        """Instead of what others get, so that a program can tell a reset from an ordinary end."""
        grace = Grace(interrupt_seconds=60, terminate_seconds=60, on_lost=signal.SIGUSR1)
        lost = part(grace, lost=True)
        child = lost.child("trap 'exit 3' INT; trap 'exit 4' TERM; trap 'exit 5' USR1")
        lost.undo()
        assert child.wait(20) == 5

    def test_a_lost_lease_is_killed_at_once_where_the_site_says_so(self, part) -> None:
        """SIGKILL needs no time; leases that end otherwise keep theirs."""
        grace = Grace(terminate_seconds=60, on_lost=signal.SIGKILL)
        lost = part(grace, lost=True)
        child = lost.child("trap 'exit 9' TERM")
        lost.undo()
        assert child.wait(20) == -9
        assert [number for number, _ in grace.stages()] == [signal.SIGTERM]

    def test_without_grace_they_are_killed_at_once(self, part) -> None:
        """0 seconds send no signal but SIGKILL."""
        parting = part(Grace())
        child = parting.child("trap 'exit 9' TERM")
        parting.undo()
        assert child.wait(20) == -9


def test_waiting_on_purpose_is_not_given_up(build, effect: ScriptedEffect) -> None:
    """Far beyond the time for a step's proof the lease is still releasing, not quarantined."""
    house = build(effect=effect, timeout=0.05)
    lease = house.grant(user(), cus=8)
    effect.script = {"undo": [Pending("asked to end", patient=True)] * 10_000}
    assert house.agent.release(user(), lease.id, 0.5).state is LeaseState.RELEASING
    effect.script.clear()
    assert house.release(lease, user()).state is LeaseState.RELEASED


def test_only_the_slices_in_doubt_are_quarantined(build, effect: ScriptedEffect) -> None:
    """Of a lease on two devices the one whose memory is back is free at once."""
    house = build(effect=effect)
    first, second = (device.key for device in house.agent.inventory().devices)
    both = Request(slices=(SliceRequest(device=(first,), cus=8), SliceRequest(device=(second,), cus=8)))
    lease = house.grant(user(), request=both)
    effect.script = {"undo": [Pending("still charged", devices=frozenset({second}))] * 10_000}
    assert house.release(lease, user()).state is LeaseState.FAILED
    assert [(one.placed.device, one.state) for one in house.ledger.held()] == [
        (second, SliceState.QUARANTINED)
    ]
    effect.script.clear()
    house.releaser.retry(lease.id).result(20)
    assert house.ledger.held() == ()


class TestKfd:
    """KFD's entry of a process that has ended."""

    def undo(self, house: House, *rows: KfdUse, **changed: object) -> object:
        effect = KfdEffect(house.ledger, house.clock, house.tree, lambda: rows)
        gpus = {"51": "0000:05:00.0/0"}
        return effect.undo({"lease": LEASE, "gpus": gpus, "boot_id": "boot-a", **changed}, {})

    def test_it_is_waited_for(self, house: House) -> None:
        """Its pid, bytes and queues are told, and the device is in doubt; without it there is proof."""
        told = self.undo(house, KfdUse(NO_PID, 51, 4096, queues=("a", "b")))
        assert isinstance(told, Pending)
        assert f"{NO_PID} (4096 bytes, 2 queues)" in told.why
        assert told.devices == frozenset({"0000:05:00.0/0"})
        assert self.undo(house) == {"processes": 0}

    def test_on_another_gpu_it_is_not_the_leases(self, house: House) -> None:
        """The lease never had that GPU."""
        assert self.undo(house, KfdUse(NO_PID, 52, 4096)) == {"processes": 0}

    def test_who_lives_is_not_waited_for_here(self, house: House, children) -> None:
        """A neighbour on the same GPU goes on, and the release does not wait for it."""
        assert self.undo(house, KfdUse(children.sleeper().pid, 51, 4096)) == {"processes": 0}

    def test_the_boot_before_left_nothing(self, house: House) -> None:
        """A pid of another boot says nothing."""
        told = self.undo(house, KfdUse(NO_PID, 51, 4096), boot_id="boot-0")
        assert not isinstance(told, Pending)

    @pytest.mark.cgroup2
    def test_a_neighbours_zombie_is_its_own(self, home: House, children) -> None:
        """One that ended in another lease's cgroup, and was not reaped yet, is not waited for."""
        neighbour, child = home.grant(cus=8), children.sleeper()
        home.enter(neighbour, child.pid)
        child.kill()
        until(lambda: home.procs(neighbour) == ())
        row = KfdUse(child.pid, 51, 4096)
        assert self.undo(home, row) == {"processes": 0}
        assert isinstance(self.undo(home, row, lease=neighbour.id), Pending)


class TestVram:
    """Without dmem: the card's counter, less what is known."""

    def undo(
        self,
        house: House,
        used: int | None,
        *,
        idle: int | None = GIB,
        kfd: tuple[KfdUse, ...] = (),
        drm: tuple[DrmClient, ...] = (),
    ) -> object:
        sources = Sources(lambda pids: kfd, lambda pids: drm, lambda pids: 0)
        sampler = Sampler(house.ledger, house.clock, house.survey, house.tree, sources)
        effect = VramEffect(sampler, lambda pool: used, house.clock, 256 * MIB)
        device = house.agent.inventory().devices[0]
        pools = {device.pool: {"idle_bytes": idle, "devices": [device.key]}}
        return effect.undo({"lease": LEASE, "pools": pools, "boot_id": house.clock.boot_id}, {})

    def test_a_card_that_is_idle_again_is_proof(self, house: House) -> None:
        """Up to the tolerance above what it used when nobody worked on it."""
        assert not isinstance(self.undo(house, GIB + 256 * MIB), Pending)

    def test_memory_of_nobody_is_in_the_way(self, house: House) -> None:
        """How much and on which card is told, and only that card's device is in doubt."""
        told = self.undo(house, 3 * GIB)
        assert isinstance(told, Pending)
        assert f"{2 * GIB} bytes" in told.why
        assert told.devices == frozenset({house.agent.inventory().devices[0].key})

    def test_what_a_neighbour_uses_is_not(self, house: House, children) -> None:
        """A live process explains its own memory, whoever it belongs to; what is beyond is nobody's."""
        gpu = house.agent.inventory().devices[0].gpu_id
        neighbour = KfdUse(children.sleeper().pid, gpu, 2 * GIB)
        assert not isinstance(self.undo(house, 3 * GIB, kfd=(neighbour,)), Pending)
        assert isinstance(self.undo(house, 4 * GIB, kfd=(neighbour,)), Pending)

    def test_what_cannot_be_known_is_said(self, house: House) -> None:
        """A driver that tells no figure, or a card never seen idle, gives no proof and is not in the way."""
        for used, idle in ((None, GIB), (3 * GIB, None)):
            told = self.undo(house, used, idle=idle)
            assert not isinstance(told, Pending)
            assert "the driver does not tell" in str(told) or "never seen idle" in str(told)


class TestPolledVram:
    """The same proof, asked again and again while memory comes back."""

    @pytest.fixture
    def card(self, house: House, children) -> Card:
        return Card(house, children.sleeper().pid)

    def test_many_polls_share_one_look_at_all_processes(self, card: Card) -> None:
        """A look reads every process; within a second the last one may say that it is too soon."""
        card.used = 4 * GIB
        assert all(isinstance(card.undo(), Pending) for _ in range(5))
        assert card.looks == 1

    def test_a_look_of_before_is_no_proof(self, card: Card) -> None:
        """What a neighbour has freed since would hide a leak: nothing is proved by an old figure."""
        card.used, card.neighbours = 5 * GIB, 2 * GIB
        assert isinstance(card.undo(), Pending)
        card.used, card.neighbours = 3 * GIB, 0
        assert isinstance(card.undo(), Pending)
        assert card.looks == 2

    def test_a_look_is_taken_anew_after_a_second(self, card: Card) -> None:
        """What a neighbour has taken since holds nothing up for longer than that."""
        card.used, card.neighbours = 5 * GIB, 2 * GIB
        assert isinstance(card.undo(), Pending)
        card.neighbours = 4 * GIB
        assert isinstance(card.undo(), Pending)
        card.house.clock.turn(1)
        assert not isinstance(card.undo(), Pending)


class Card:
    """One card with a leak or without: what is used of it, and what a neighbour has of that."""

    def __init__(self, house: House, pid: int) -> None:
        self.house, self.used, self.neighbours, self.looks = house, GIB, 0, 0
        self._device = house.agent.inventory().devices[0]
        gpu = self._device.gpu_id

        def clients(pids: object) -> tuple[DrmClient, ...]:
            self.looks += 1
            return ()

        sources = Sources(lambda pids: (KfdUse(pid, gpu, self.neighbours),), clients, lambda pids: 0)
        sampler = Sampler(house.ledger, house.clock, house.survey, house.tree, sources)
        self._effect = VramEffect(sampler, lambda pool: self.used, house.clock, 256 * MIB)

    def undo(self) -> object:
        pools = {self._device.pool: {"idle_bytes": GIB, "devices": [self._device.key]}}
        return self._effect.undo({"lease": LEASE, "pools": pools, "boot_id": self.house.clock.boot_id}, {})
