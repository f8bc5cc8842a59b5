"""Reconcile: one named action for each difference between the ledger and the node."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from service_builders import (
    House,
    admin,
    come_back,
    node_directory,
    outside,
    touch_generation,
    until,
    user,
    vanish,
)
from service_world import TurnedClock

from nodeagent.domain.device import DeviceState
from nodeagent.domain.errors import LedgerUnavailable
from nodeagent.domain.lease import AnchorKind, HolderKind, Lease, LeaseState, SliceState
from nodeagent.service.reconcile import Periods


def test_a_lease_ends_when_its_time_is_up(house: House, clock: TurnedClock) -> None:
    """A ttl that is not renewed reaps the lease, with the reason."""
    lease = house.grant(user(), cus=8, ttl=100)
    clock.turn(99.9)
    house.look()
    assert house.state(lease.id) is LeaseState.ACTIVE
    clock.turn(0.1)
    house.look()
    ended = house.ledger.lease(lease.id)
    assert (ended.state, ended.reason) == (LeaseState.RELEASED, "its time is up")
    assert house.kinds(lease) == ["granted", "reaped", "released"]


def test_a_change_of_one_lease_makes_it_alone_be_looked_at(build, clock: TurnedClock) -> None:
    """Between two looks at the whole node; a change of nobody knows whom makes all of them be."""
    house = build(periods=Periods(look=1000))
    house.reconciler.run_once()
    one, other = (house.grant(user(), cus=8, ttl=100) for _ in range(2))
    clock.turn(100)
    house.reconciler.run_once({one.id})
    until(lambda: house.state(one.id) is LeaseState.RELEASED)
    assert house.state(other.id) is LeaseState.ACTIVE
    house.reconciler.run_once({one.id, None})
    until(lambda: house.state(other.id) is LeaseState.RELEASED)


def test_a_renewal_counts_from_now(house: House, clock: TurnedClock) -> None:
    """Renewed in time the lease goes on, with the new ttl where one is given."""
    lease = house.grant(user(), cus=8, ttl=100)
    clock.turn(90)
    house.agent.renew(user(), lease.id)
    clock.turn(90)
    house.look()
    assert house.state(lease.id) is LeaseState.ACTIVE
    house.agent.renew(user(), lease.id, 1000)
    clock.turn(900)
    house.look()
    assert house.state(lease.id) is LeaseState.ACTIVE


def test_a_renewal_during_the_look_counts(house: House, clock: TurnedClock, monkeypatch) -> None:
    """What was answered with a new time is not reaped by what the look had read before."""
    lease, dead, asked = house.grant(user(), cus=8, ttl=100), house.anchors.dead, []

    def dead_then_renewed(known: Lease) -> str | None:
        reason = dead(known)
        if not asked:
            asked.append(reason)
            house.agent.renew(user(), lease.id)
        return reason

    clock.turn(100)
    monkeypatch.setattr(house.anchors, "dead", dead_then_renewed)
    house.look()
    assert asked == ["its time is up"]
    assert house.state(lease.id) is LeaseState.ACTIVE


def test_a_jump_of_the_wall_clock_ends_nothing(house: House, clock: TurnedClock) -> None:
    """Leases live by boot time."""
    lease = house.grant(user(), cus=8, ttl=100)
    clock.now += 10_000_000
    house.look()
    assert house.state(lease.id) is LeaseState.ACTIVE


def test_a_lease_ends_with_its_process(house: House, children) -> None:
    """The anchor is the process by pid and start time; its end reaps the lease."""
    child = children.sleeper()
    lease = house.grant(user(pid=child.pid), cus=8, anchor=AnchorKind.PROCESS)
    house.look()
    assert house.state(lease.id) is LeaseState.ACTIVE
    child.kill()
    child.wait()
    house.look()
    assert house.state(lease.id) is LeaseState.RELEASED
    assert house.ledger.lease(lease.id).reason == f"process {child.pid} ended"


def test_a_zombie_is_dead(house: House, children) -> None:
    """A process that ended ends its lease although its parent never reaps it."""
    child = children.sleeper()
    lease = house.grant(user(pid=child.pid), cus=8, anchor=AnchorKind.PROCESS)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    house.look()
    assert house.state(lease.id) is LeaseState.RELEASED


def test_a_reused_pid_is_another_process(house: House, children) -> None:
    """A live process with the anchor's pid and another start time does not hold the lease."""
    child = children.sleeper()
    lease = house.grant(user(pid=child.pid), cus=8, anchor=AnchorKind.PROCESS)
    with house.ledger.write() as tx:
        tx.set_anchor(lease.id, replace(lease.anchor, start_time=lease.anchor.start_time - 1))
    house.look()
    assert house.ledger.lease(lease.id).reason == f"process {child.pid} ended"


def test_an_anchor_never_seen_alive_dies_at_its_start_deadline(house: House, clock: TurnedClock) -> None:
    """A lease that nobody enters is reaped after the start time."""
    lease = house.grant(user(), cus=8, anchor=AnchorKind.CGROUP)
    clock.turn(59)
    house.look()
    assert house.state(lease.id) is LeaseState.ACTIVE
    clock.turn(1)
    house.look()
    assert house.ledger.lease(lease.id).reason == "nothing entered it before its start deadline"


def test_an_unarmed_lease_ends_with_whoever_asked(house: House, children) -> None:
    """Its requester dies before entering: the lease need not wait for the start deadline."""
    child = children.sleeper()
    lease = house.grant(user(pid=child.pid), cus=8, anchor=AnchorKind.CGROUP)
    child.kill()
    child.wait()
    house.look()
    assert house.state(lease.id) is LeaseState.RELEASED


def test_an_external_lease_ends_by_word_only(house: House, clock: TurnedClock, children) -> None:
    """Neither time nor the end of who asked ends a lease of a job."""
    child = children.sleeper()
    lease = house.grant(admin(child.pid), cus=8, anchor=AnchorKind.EXTERNAL, holder=(HolderKind.SLURM, "7"))
    child.kill()
    child.wait()
    clock.turn(10_000_000)
    house.look()
    assert house.state(lease.id) is LeaseState.ACTIVE


def test_drains_end_at_their_time(house: House, clock: TurnedClock) -> None:
    """A drain with an end is undrained by itself; one without stays."""
    timed, endless = (device.key for device in house.agent.inventory().devices)
    house.agent.drain(admin(), timed, until_seconds=100)
    house.agent.drain(admin(), endless)
    clock.turn(99)
    house.look()
    assert house.agent.device(timed).state is DeviceState.DRAINING
    clock.turn(1)
    house.look()
    assert house.agent.device(timed).state is DeviceState.HEALTHY
    assert house.agent.device(endless).state is DeviceState.DRAINING


def test_a_drain_outlives_a_reboot(build, clock: TurnedClock) -> None:
    """A timed one until its end on the wall clock, however long the node was down; an endless one stays."""
    house = build()
    timed, endless = (device.key for device in house.agent.inventory().devices)
    house.agent.drain(admin(), timed, until_seconds=100)
    house.agent.drain(admin(), endless)
    house.die()
    clock.reboot()
    clock.now += 60  # it was down for so long
    house = build()
    assert house.agent.device(timed).state is DeviceState.DRAINING
    clock.turn(39)
    house.look()
    assert house.agent.device(timed).state is DeviceState.DRAINING
    clock.turn(2)
    house.look()
    assert house.agent.device(timed).state is DeviceState.HEALTHY
    assert house.agent.device(endless).state is DeviceState.DRAINING


def test_another_partition_mode_opens_an_epoch_and_loses_its_leases(build) -> None:
    """A lease of the old epoch is lost and released; its device takes new ones in the new epoch."""
    house = build("mi300x-spx")
    device, other = house.agent.inventory().devices[:2]
    lease = house.grant(user(), cu_percent=25, device=(device.key,))
    untouched = house.grant(user(), cu_percent=25, device=(other.key,))
    pci = house.root / "sys/bus/pci/devices" / device.pci
    (pci / "current_memory_partition").write_text("NPS4\n")
    touch_generation(house.root, 3)
    house.look()
    assert house.kinds(lease) == ["granted", "lost", "released"]
    assert "partitioned anew" in (house.ledger.lease(lease.id).reason or "")
    assert house.state(untouched.id) is LeaseState.ACTIVE
    assert house.agent.device(device.key).epoch == device.epoch + 1
    (held,) = house.grant(user(), cu_percent=25, device=(device.key,)).slices
    assert held.placed.epoch == device.epoch + 1


def test_another_generation_means_another_scan(house: House) -> None:
    """KFD says that the topology changed: the node is scanned again, else not."""

    def scans() -> int:
        return [event.kind for event in house.ledger.events()].count("rescanned")

    house.look()
    before = scans()
    touch_generation(house.root, 77)
    house.look()
    house.look()
    assert scans() == before + 1
    assert house.agent.inventory().generation == 77


def test_a_vanished_device_loses_its_leases_and_is_listed_as_gone(build) -> None:
    """Its leases end with the reason, others go on; the slices are held back until it is back."""
    house = build("mi210")
    device, other = house.agent.inventory().devices[:2]
    lease = house.grant(user(), cus=8, device=(device.key,))
    untouched = house.grant(user(), cus=8, device=(other.key,))
    vanish(house.root, device.kfd_node)
    touch_generation(house.root, 3)
    house.look()
    assert house.kinds(lease) == ["granted", "lost", "quarantined"]
    assert house.state(untouched.id) is LeaseState.ACTIVE
    assert house.agent.device(device.key).state is DeviceState.GONE
    assert house.agent.clear_lease(admin(), lease.id).slices[0].state is SliceState.QUARANTINED
    come_back(house.root, device.kfd_node)
    touch_generation(house.root, 4)
    house.look()
    assert house.agent.clear_lease(admin(), lease.id).slices[0].state is SliceState.FREE


@pytest.mark.parametrize("restarted", [False, True])
def test_a_device_that_vanishes_does_not_take_its_twin_along(build, restarted: bool) -> None:
    """Two cards of one location share what a key is made of; the lease on the one that stays lives on."""
    house = build("vega10")
    first, second = house.agent.inventory().devices
    lost, kept = (house.grant(user(), cus=8, device=(one.key,)) for one in (first, second))
    vanish(house.root, first.kfd_node)
    touch_generation(house.root, 3)
    if restarted:
        house.die()
        house = build("vega10")
    house.look()
    assert house.agent.device(second.key).state is DeviceState.HEALTHY
    assert (house.state(lost.id), house.state(kept.id)) == (LeaseState.FAILED, LeaseState.ACTIVE)


def test_one_bad_read_of_a_device_ends_none_of_its_leases(build) -> None:
    """A garbled file makes the device unhealthy; read well again it is the same device in the same epoch."""
    house = build("mi210")
    device = house.agent.inventory().devices[0]
    lease = house.grant(user(), cus=8, device=(device.key,))
    file = house.root / "sys/bus/pci/devices" / device.pci / "mem_info_vram_total"
    good = file.read_text()
    for generation, text, state in ((3, "garbage", DeviceState.UNHEALTHY), (4, good, DeviceState.HEALTHY)):
        file.write_text(text)
        touch_generation(house.root, generation)
        house.look()
        found = house.agent.device(device.key)
        assert (found.state, found.epoch) == (state, device.epoch)
        assert house.state(lease.id) is LeaseState.ACTIVE


def test_an_unreadable_topology_of_a_device_ends_none_of_its_leases(build) -> None:
    """Also where what is garbled are the very properties that name its compute units."""
    house = build("mi210")
    device = house.agent.inventory().devices[0]
    lease = house.grant(user(), cus=8, device=(device.key,))
    file = node_directory(house.root, device.kfd_node) / "properties"
    good = file.read_text()
    for generation, text in ((3, good.replace("array_count ", "array_count x")), (4, good)):
        file.write_text(text)
        touch_generation(house.root, generation)
        house.look()
        assert house.state(lease.id) is LeaseState.ACTIVE
        assert house.agent.device(device.key).epoch == device.epoch


def test_a_scan_that_the_ledger_could_not_take_is_repeated(house: House, monkeypatch) -> None:
    """Capacities must reach the ledger's own rules: else grants would fail until the next change."""
    write = house.ledger.write
    failing = [True]

    def sometimes(**options: bool):
        if failing:
            raise LedgerUnavailable("busy")
        return write(**options)

    monkeypatch.setattr(house.ledger, "write", sometimes)
    touch_generation(house.root, 77)
    house.look()
    failing.clear()
    before = len(house.ledger.events())
    house.look()
    assert [event.kind for event in house.ledger.events()[before:]] == ["rescanned"]


@pytest.mark.parametrize("step", ["_topology", "_compare", "_drains", "_leases", "_queue", "_quarantine"])
def test_a_fault_in_one_step_does_not_stop_others(build, clock: TurnedClock, monkeypatch, step) -> None:
    """Whatever step fails, those after it and before it have had their turn."""
    house = build()
    done = []

    def fail() -> None:
        raise outside()

    for name in ("_topology", "_compare", "_drains", "_leases", "_queue", "_quarantine"):
        monkeypatch.setattr(
            house.reconciler, name, fail if name == step else lambda name=name: done.append(name)
        )
    clock.turn(60)
    house.reconciler.run_once()
    assert len(done) == 5


def test_a_fault_with_one_lease_does_not_stop_others(house: House, clock: TurnedClock, monkeypatch) -> None:
    """An anchor that cannot be looked at keeps no other dead lease from being reaped."""
    odd, dead = house.grant(user(), cus=8, ttl=1000), house.grant(user(), cus=8, ttl=100)
    look = house.anchors.dead

    def dead_or_fault(lease):
        if lease.id == odd.id:
            raise outside()
        return look(lease)

    monkeypatch.setattr(house.anchors, "dead", dead_or_fault)
    clock.turn(100)
    house.look()
    assert house.state(odd.id) is LeaseState.ACTIVE
    assert house.state(dead.id) is LeaseState.RELEASED


def test_the_thread_reaps_by_itself(build, children) -> None:
    """Started as wiring starts it, the end of a process alone frees its slice."""
    house = build(periods=Periods(look=600, pause=0))
    house.changes.listen(house.reconciler.wake)
    house.reconciler.start()
    child = children.sleeper()
    lease = house.grant(user(pid=child.pid), cus=8, anchor=AnchorKind.PROCESS)
    watched = house.reconciler._vigil._watched
    until(lambda: lease.id in watched)
    child.kill()
    until(lambda: house.state(lease.id) is LeaseState.RELEASED)
    until(lambda: lease.id not in watched)
    child.wait()


def test_the_thread_grants_those_who_wait(build) -> None:
    """A release wakes the reconciler, which grants the next in the queue."""
    house = build(periods=Periods(look=600, pause=0))
    house.changes.listen(house.reconciler.wake)
    house.reconciler.start()
    blocker = house.grant(admin(), count=2)
    waiting = house.grant(user(), cus=8, wait=600)
    house.agent.release(admin(), blocker.id, 0)
    assert house.agent.wait_lease(user(), waiting.id, 20).state is LeaseState.ACTIVE


def test_history_is_pruned_by_the_thread_alone(build, monkeypatch) -> None:
    """Not by the look that a start waits for: there may be much to prune."""
    monkeypatch.setattr("nodeagent.service.reconcile.KEEP_EVENTS", 1)
    house = build(periods=Periods(look=0.01, pause=0))
    house.release(house.grant(cus=8))
    house.look()
    assert len(house.ledger.events()) > 1
    house.reconciler.start()
    until(lambda: len(house.ledger.events()) <= 1)


def test_events_tell_everyone_their_own(house: House) -> None:
    """An administrator follows all events, a user those of their leases only; a wait ends with the event."""
    mine, other = house.grant(user(), cus=8), house.grant(user(1001), cus=8)
    assert {event.lease for event in house.agent.events(user())} == {mine.id}
    seen = house.agent.events(admin())
    assert {event.lease for event in seen} >= {mine.id, other.id}
    assert house.agent.events(admin(), after=seen[-1].id, wait=0) == ()
    house.release(mine, user())
    assert house.agent.events(user(), after=seen[-1].id, wait=10)[0].kind == "releasing"
