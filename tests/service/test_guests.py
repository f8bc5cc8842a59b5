"""Guests: a container that is started from within a lease lives in that, and ends with it at the latest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from fake_engine import FakeEngine
from guest_world import GLIBC, guests, host, look, noted, started, taken, within
from service_builders import House, admin, until, user
from service_world import TurnedClock

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.hook_files import HookFiles
from nodeagent.domain.container import Engine
from nodeagent.domain.errors import NotAllowed, UnknownThing
from nodeagent.domain.lease import HolderKind, Lease, LeaseState

pytestmark = pytest.mark.root
Build = Callable[..., House]


@pytest.fixture
def house(build: Build, engine: FakeEngine, tree: CgroupTree, hook_files: HookFiles) -> House:
    """An agent beside one engine, whose leases have a hook."""
    return build(tree=tree, engines={Engine.DOCKER: engine}, hook=hook_files)


def test_each_guest_has_a_ticket_and_a_note_of_its_own(
    house: House, engine: FakeEngine, job: Lease, inside: int
) -> None:
    """Several containers are in one lease; each is bound to its own."""
    (first, one), (second, two) = (started(house, engine, job, inside) for _ in range(2))
    assert first.view.labels != second.view.labels
    assert {guest.number: guest.held.id for guest in guests(house, job)} == {
        first.number: one,
        second.number: two,
    }
    notes = {house.dock.files.note(job.id, one.number) for one in (first, second)}
    assert len(notes) == 2 and all(note.exists() for note in notes)
    assert [one.id for one in house.agent.leases(admin(), holder=(HolderKind.DOCKER, one))] == [job.id]


@pytest.mark.parametrize("status", ["exited", "dead", None])
def test_a_guest_ends_with_its_container_and_the_lease_goes_on(
    house: House, engine: FakeEngine, job: Lease, inside: int, status: str | None
) -> None:
    """Its files go, so that it is not started again; what the lease has stays."""
    hosted, container = started(house, engine, job, inside)
    if status is None:
        engine.remove(container)
    else:
        engine.be(container, status)
    look(house)
    assert guests(house, job) == [] and house.state(job.id) is LeaseState.ACTIVE
    assert not house.dock.files.note(job.id, hosted.number).exists()
    assert list((house.dock.files.note(1).parents[2] / "tickets").glob("*/*")) == []
    assert house.hook.usage_path(job.id).exists()
    assert house.kinds(job)[-3:] == ["guest", "bound", "guest_ended"]


def test_the_end_of_the_lease_ends_its_guests(house: House, engine: FakeEngine, job: Lease) -> None:
    """As the epilog does, whatever became of the client: by the engine, before the slice is free."""
    with within(house, job) as pid:
        (_, one), (_, two) = (started(house, engine, job, pid) for _ in range(2))
    house.release(job)
    assert house.state(job.id) is LeaseState.RELEASED
    assert sorted(engine.calls) == [("stop", one), ("stop", two)]
    assert house.dock.files.leases() == frozenset()


def test_a_container_that_does_not_end_keeps_the_slice(build: Build, tree: CgroupTree) -> None:
    """It is killed, and where that cannot be seen nothing is freed."""
    engine = FakeEngine(stubborn=True)
    house = build(tree=tree, engines={Engine.DOCKER: engine}, timeout=10)
    job = taken(house)
    with within(house, job) as pid:
        _, container = started(house, engine, job, pid)
    house.release(job)
    assert engine.calls == [("stop", container), ("kill", container)]


def test_a_guest_that_is_given_back_leaves_the_lease(
    house: House, engine: FakeEngine, job: Lease, inside: int
) -> None:
    """A wrapper whose engine failed takes back its own, and nobody else's."""
    hosted = host(house, job, inside)
    other, _ = started(house, engine, job, inside)
    with pytest.raises(NotAllowed):
        house.agent.give_back_guest(user(1001), job.id, hosted.number)
    house.agent.give_back_guest(user(1000), job.id, hosted.number)
    assert [one.number for one in guests(house, job)] == [other.number]
    assert house.state(job.id) is LeaseState.ACTIVE and engine.calls == []
    with pytest.raises(UnknownThing):
        house.agent.give_back_guest(user(1000), job.id, hosted.number)


def test_a_guest_that_never_starts_is_cleaned(
    house: House, engine: FakeEngine, job: Lease, inside: int, clock: TurnedClock
) -> None:
    """Made or not, by its own start deadline: a created container is not started after that."""
    host(house, job, inside, replace(GLIBC, start_seconds=300))
    made = host(house, job, inside, replace(GLIBC, start_seconds=300))
    engine.create(made.view.labels)
    clock.turn(200)
    look(house)
    assert len(guests(house, job)) == 2
    clock.turn(101)
    look(house)
    assert guests(house, job) == [] and house.state(job.id) is LeaseState.ACTIVE


def test_a_guest_whose_asker_ended_waits_for_the_engines_word(
    house: House, engine: FakeEngine, job: Lease
) -> None:
    """It may have started the container a moment ago; where there is none it is over at once."""
    with within(house, job) as pid:
        first, second = (host(house, job, pid) for _ in range(2))
    engine.down = True
    house.look()
    assert len(guests(house, job)) == 2
    engine.down = False
    engine.create(first.view.labels, status="running")
    house.clock.turn(3)
    look(house)
    assert [one.number for one in guests(house, job)] == [first.number]
    assert guests(house, job)[0].armed and second.number != first.number


def test_a_guessed_or_copied_ticket_binds_nothing(
    house: House, engine: FakeEngine, job: Lease, inside: int
) -> None:
    """A label is a hint: the first container keeps it, and a lease's number is no ticket."""
    hosted = host(house, job, inside)
    engine.create({"gpulease.lease": str(job.id), "gpulease.ticket": "0" * 32}, status="running")
    look(house)
    assert guests(house, job)[0].held.id is None
    container = engine.create(hosted.view.labels, status="running")
    engine.create(hosted.view.labels, status="running")
    look(house)
    assert guests(house, job)[0].held.id == container


def test_an_engine_that_is_down_ends_no_guest(
    house: House, engine: FakeEngine, job: Lease, inside: int
) -> None:
    """Its container counts as there until it says otherwise."""
    started(house, engine, job, inside)
    engine.down = True
    look(house)
    look(house)
    assert len(guests(house, job)) == 1


def test_guests_outlive_the_agent(
    house: House, build: Build, engine: FakeEngine, tree: CgroupTree, job: Lease, inside: int
) -> None:
    """What is started meanwhile is bound, what ended is over, what was half let in is taken back."""
    _, gone = started(house, engine, job, inside)
    waiting = host(house, job, inside)
    cut = guests(house, job)[0].entry.arguments
    with house.ledger.write() as tx:
        tx.plan_effect(job.id, "guest", {**cut, "guest": 77})
    house.die()
    engine.remove(gone)
    container = engine.create(waiting.view.labels, status="running")
    again = build(tree=tree, engines={Engine.DOCKER: engine}, hook=house.hook)
    look(again)
    assert [(one.number, one.held.id) for one in guests(again, job)] == [(waiting.number, container)]


def test_a_guest_is_over_when_its_own_processes_are_gone(build: Build, tree: CgroupTree) -> None:
    """Those with its own note among their mounts, wherever they are; another's do not keep it."""
    engine = FakeEngine(version="1")
    house = build(tree=tree, engines={Engine.DOCKER: engine})
    job = taken(house)
    with within(house, job) as pid:
        first, second = (host(house, job, pid) for _ in range(2))
        assert first.view.cgroup_parent is None
        with noted(house.dock.files.note(job.id, second.number)):
            house.agent.give_back_guest(user(1000), job.id, first.number)
            house.agent.give_back_guest(user(1000), job.id, second.number)
            assert [one.number for one in guests(house, job)] == [second.number]
        until(lambda: look(house) or not guests(house, job))
