"""Leases of containers: bound by the ticket, alive by the engine's word, ended by it, whatever it forgets."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from service_builders import GIB, House, admin, order_of, until, user
from service_world import TurnedClock

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.config import Docker
from nodeagent.domain.container import Container, Engine
from nodeagent.domain.errors import InvalidField
from nodeagent.domain.lease import HolderKind, Lease, LeaseState
from nodeagent.service.anchoring import AnchorLimits

pytestmark = pytest.mark.root
Build = Callable[..., House]


@pytest.fixture
def house(build: Build, engine: FakeEngine) -> House:
    """An agent without cgroups, beside one engine."""
    return build(engines={Engine.DOCKER: engine})


def taken(house: House, **wanted: Any) -> Lease:
    """A lease that a process which lives on has taken for a container."""
    held = Container(Engine.DOCKER, **wanted)
    return house.grant(user(1000), container=held, cus=8, vram_bytes=GIB)


def labels(house: House, lease: Lease) -> dict[str, str]:
    view = house.agent.container(user(1000), lease, ticket=True)
    assert view is not None
    return dict(view.labels)


def look(house: House) -> None:
    """What the engine's watch does at an event, and then the reconciler."""
    house.dock.engines.look(Engine.DOCKER)
    house.look()


def now(house: House, lease: Lease) -> Lease:
    found = house.ledger.lease(lease.id)
    assert found is not None
    return found


def bound(house: House, engine: FakeEngine, **wanted: Any) -> tuple[Lease, str]:
    """A lease with its container, which runs."""
    lease = taken(house, **wanted)
    container = engine.create(labels(house, lease), status="running")
    look(house)
    return now(house, lease), container


def test_a_container_with_the_ticket_is_bound(house: House, engine: FakeEngine) -> None:
    """Once, and armed as soon as it runs; who asked for the lease does not count any more."""
    lease, container = bound(house, engine)
    assert lease.anchor.container is not None
    assert (lease.anchor.container.id, lease.anchor.armed, lease.anchor.pid) == (container, True, None)
    look(house)
    assert house.kinds(lease).count("bound") == 1
    view = house.agent.container(user(1000), lease)
    assert view is not None and view.id == container
    assert view.labels == {"gpulease.lease": str(lease.id)}  # the ticket was told once, to who asked


def test_a_container_that_was_made_and_not_started_is_bound_unarmed(
    house: House, engine: FakeEngine, clock: TurnedClock
) -> None:
    """It is given its time to start, and no longer."""
    lease = taken(house, start_seconds=300)
    engine.create(labels(house, lease))
    look(house)
    held = now(house, lease)
    assert held.anchor.container is not None and held.anchor.container.id and not held.anchor.armed
    clock.turn(200)
    look(house)
    assert house.state(lease.id) is LeaseState.ACTIVE
    clock.turn(101)
    look(house)
    assert house.state(lease.id) is LeaseState.RELEASED


def test_a_start_is_not_waited_for_longer_than_a_lease_may_idle(house: House) -> None:
    """Else whoever may not have a ttl that long would hold a slice that long with no container in it."""
    with pytest.raises(InvalidField, match=r"anchor\.start_seconds"):
        taken(house, start_seconds=AnchorLimits().max_ttl + 1)
    order = order_of(cus=8, vram_bytes=GIB, container=Container(Engine.DOCKER, start_seconds=601))
    of_class = replace(order, anchor=replace(order.anchor, max_ttl_seconds=600))
    with pytest.raises(InvalidField, match="must lie between 1 and 600"):
        house.agent.grant(user(1000), of_class)


def test_the_first_container_keeps_the_lease(house: House, engine: FakeEngine) -> None:
    """Another one that copies its labels, ticket and all, gets nothing and is told of, once."""
    lease, container = bound(house, engine)
    copy = engine.create(labels(house, lease), name="copy", status="running")
    look(house)
    look(house)
    held = now(house, lease).anchor.container
    assert held is not None and held.id == container
    (told,) = [one for one in house.ledger.events(lease=lease.id) if one.kind == "foreign_container"]
    assert told.data == {"container": copy}
    engine.remove(container)
    look(house)
    assert house.state(lease.id) is LeaseState.RELEASED
    assert ("stop", copy) not in engine.calls


def test_of_several_containers_the_first_one_is_the_leases(house: House, engine: FakeEngine) -> None:
    """Where an agent sees them all at once; unless the plugin saw on which the ticket was spent."""
    lease, other = taken(house), taken(house)
    for one in (lease, other):
        first, copy = (engine.create(labels(house, one), status="running") for _ in range(2))
        if one is other:
            house.dock.files.bind(one.id, copy)
        house.dock.engines.look(Engine.DOCKER)
        house.look()
        held = now(house, one).anchor.container
        assert held is not None and held.id == (copy if one is other else first)


@pytest.mark.parametrize("ticket", ["0" * 32, "", "1"])
def test_a_guessed_ticket_binds_nothing(house: House, engine: FakeEngine, ticket: str) -> None:
    """Nor does a lease's number alone."""
    lease = taken(house)
    engine.create({"gpulease.lease": str(lease.id), "gpulease.ticket": ticket}, status="running")
    engine.create({"gpulease.lease": str(lease.id)}, status="running")
    look(house)
    held = now(house, lease).anchor.container
    assert held is not None and held.id is None


@pytest.mark.parametrize("status", ["exited", "dead", None])
def test_a_lease_ends_with_its_container(house: House, engine: FakeEngine, status: str | None) -> None:
    """By any of an engine's words for it, also where it was removed."""
    lease, container = bound(house, engine)
    if status is None:
        engine.remove(container)
    else:
        engine.be(container, status)
    look(house)
    assert house.state(lease.id) is LeaseState.RELEASED


def test_an_engine_that_is_down_ends_no_lease(house: House, engine: FakeEngine) -> None:
    """Its containers count as there, until it says otherwise."""
    lease, container = bound(house, engine)
    engine.down = True
    look(house)
    look(house)
    assert house.state(lease.id) is LeaseState.ACTIVE
    engine.down = False
    engine.remove(container)
    look(house)
    assert house.state(lease.id) is LeaseState.RELEASED


def test_a_container_between_two_runs_keeps_its_lease(
    house: House, engine: FakeEngine, clock: TurnedClock
) -> None:
    """Where its engine starts it again: also after an end of the engine's own, but not for ever."""
    lease, container = bound(house, engine, restarts=True)
    for status in ("restarting", "exited"):
        engine.be(container, status)
        look(house)
        assert house.state(lease.id) is LeaseState.ACTIVE
    engine.be(container, "running")
    look(house)
    engine.be(container, "exited")
    clock.turn(60)
    look(house)
    assert house.state(lease.id) is LeaseState.ACTIVE
    clock.turn(60)
    look(house)
    assert house.state(lease.id) is LeaseState.RELEASED


def test_without_restarts_a_container_that_ended_is_over(house: House, engine: FakeEngine) -> None:
    """Whatever its engine means to do with it."""
    lease, container = bound(house, engine)
    engine.be(container, "restarting")
    look(house)
    assert house.state(lease.id) is LeaseState.RELEASED


def test_a_lease_whose_asker_ended_waits_for_the_engines_word(house: House, engine: FakeEngine) -> None:
    """It may have started the container a moment ago; where there is none the lease ends at once."""
    asker = subprocess.Popen(["sleep", "60"])
    try:
        held = Container(Engine.DOCKER)
        first, second = (
            house.grant(user(1000, asker.pid), container=held, cus=8, vram_bytes=GIB) for _ in range(2)
        )
    finally:
        asker.kill()
        asker.wait()
    engine.down = True
    house.look()
    assert {house.state(lease.id) for lease in (first, second)} == {LeaseState.ACTIVE}
    engine.down = False
    engine.create(labels(house, first), status="running")
    house.clock.turn(3)
    look(house)
    assert house.state(second.id) is LeaseState.RELEASED
    assert now(house, first).anchor.armed


def test_the_end_of_a_lease_stops_its_container(house: House, engine: FakeEngine) -> None:
    """Through its engine, once; what it had mounted is gone before."""
    lease, container = bound(house, engine)
    house.release(lease)
    assert house.state(lease.id) is LeaseState.RELEASED
    assert engine.calls == [("stop", container)]
    assert house.dock.files.leases() == frozenset()


def test_a_container_that_does_not_stop_is_killed(build: Build) -> None:
    """By its engine, when its time is up."""
    engine = FakeEngine(stubborn=True)
    house = build(engines={Engine.DOCKER: engine}, timeout=10)
    lease, container = bound(house, engine)
    assert house.release(lease).state is LeaseState.RELEASED
    assert engine.calls == [("stop", container), ("kill", container)]


def test_what_cannot_be_seen_to_end_is_not_freed(build: Build) -> None:
    """An engine on version 1 that does not answer: its container may run on, and is in no cgroup of ours."""
    engine = FakeEngine(version="1")
    house = build(engines={Engine.DOCKER: engine})
    lease, container = bound(house, engine)
    engine.down = True
    assert house.release(lease).state is LeaseState.FAILED
    engine.down = False
    engine.remove(container)
    house.clock.turn(120)
    house.look()
    until(lambda: not house.ledger.quarantined())


def test_what_came_and_went_while_the_agent_was_away(build: Build, engine: FakeEngine) -> None:
    """A container that was made meanwhile is bound, and one that is gone has ended its lease."""
    house = build(engines={Engine.DOCKER: engine})
    gone, old = bound(house, engine)
    waiting = taken(house, start_seconds=600)
    said = labels(house, waiting)
    house.die()
    engine.remove(old)
    container = engine.create(said, status="running")
    again = build(engines={Engine.DOCKER: engine})
    look(again)
    held = now(again, waiting).anchor
    assert held.container is not None and (held.container.id, held.armed) == (container, True)
    assert again.state(gone.id) is LeaseState.RELEASED


def test_the_same_request_is_told_its_ticket_again(build: Build, engine: FakeEngine) -> None:
    """Also by an agent that was started since: the client may not have heard the first answer."""
    house = build(engines={Engine.DOCKER: engine})
    said = labels(house, taken(house))
    house.die()
    again = build(engines={Engine.DOCKER: engine})
    (lease,) = again.ledger.live()
    assert labels(again, lease) == said
    assert said["gpulease.ticket"] not in str(again.ledger.effects(lease.id))


def test_a_lost_ledger_has_its_container_back(
    build: Build, engine: FakeEngine, tree: CgroupTree, tmp_path: Path
) -> None:
    """From the sidecar, with the container that was bound."""
    house = build(tree=tree, engines={Engine.DOCKER: engine})
    lease, container = bound(house, engine)
    house.die()
    for path in (tmp_path / "state").glob("ledger.sqlite3*"):
        path.unlink()
    again = build(tree=tree, engines={Engine.DOCKER: engine})
    held = now(again, lease).anchor
    assert held.container is not None and (held.container.id, held.armed) == (container, True)
    assert held == now(again, lease).anchor
    engine.remove(container)
    look(again)
    assert again.state(lease.id) is LeaseState.RELEASED


def test_leases_are_found_by_the_name_of_their_container(house: House, engine: FakeEngine) -> None:
    """Or by its id, as holders of the kind docker are."""
    lease, container = bound(house, engine)
    taken(house)
    for name in ("web", container, container[:12]):
        found = house.agent.leases(admin(), holder=(HolderKind.DOCKER, name))
        assert [one.id for one in found] == [lease.id]
    assert house.agent.leases(admin(), holder=(HolderKind.DOCKER, "none")) == ()
    assert house.agent.leases(user(1001), holder=(HolderKind.DOCKER, "web"), uid=1001) == ()


def test_populated_cgroups_arm_and_hold(build: Build, engine: FakeEngine, tree: CgroupTree) -> None:
    """Who is in the lease's cgroup counts, whatever the engine says, or where it says nothing."""
    house = build(tree=tree, engines={Engine.DOCKER: engine})
    lease = taken(house)
    inside = subprocess.Popen(["sleep", "60"])
    try:
        house.enter(lease, inside.pid)
        engine.down = True
        house.look()
        held = now(house, lease).anchor
        assert (held.armed, held.pid) == (True, None)
    finally:
        inside.kill()
        inside.wait()
    house.look()
    assert house.state(lease.id) is LeaseState.RELEASED


def test_where_containers_are_turned_off_none_is_anchored(build: Build) -> None:
    """A refusal of the field, by the setting's name."""
    house = build(config={"docker": Docker(enabled=False)})
    with pytest.raises(InvalidField, match=r"docker\.enabled"):
        house.agent.grant(user(1000), order_of(container=Container(Engine.DOCKER), cus=8))
