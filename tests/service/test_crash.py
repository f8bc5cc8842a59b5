"""Killed at any instruction: the next start finishes or undoes, and nothing is ever held twice."""

from __future__ import annotations

import pytest
from service_builders import House, admin, check_sound, order_of, until, user, vanish
from service_world import DeathError, ScriptedEffect, TurnedClock

from nodeagent.domain.lease import AnchorKind, LeaseState, SliceState


def consistent(house: House, effect: ScriptedEffect) -> None:
    """The world outside has exactly the changes of the live leases, and the ledger's rows are sound."""
    active = {lease.id for lease in house.ledger.live() if lease.state is LeaseState.ACTIVE}
    assert effect.world == active
    check_sound(house.ledger.held(), house)
    assert house.ledger.check() == ()


@pytest.mark.parametrize(
    "script",
    [
        {"apply": [DeathError()]},
        {"apply": ["after"]},
        {"verify": [DeathError()]},
        {"verify": ["after"]},
    ],
    ids=["before apply", "after apply", "before verify", "after verify"],
)
def test_a_grant_cut_short_is_finished_at_the_next_start(build, effect: ScriptedEffect, script) -> None:
    """The booked lease is prepared by the next agent, and the caller's retry by request id finds it."""
    house = build(effect=effect)
    effect.script = script
    with pytest.raises(DeathError):
        house.agent.grant(user(), order_of(cus=8, request_id="a"))
    house.die()
    house = build(effect=effect)
    house.look()
    (lease,) = house.ledger.live()
    assert lease.state is LeaseState.ACTIVE
    consistent(house, effect)
    again = house.agent.grant(user(), order_of(cus=8, request_id="a"))
    assert (again.lease.id, again.fresh) == (lease.id, False)


@pytest.mark.parametrize("death", [DeathError(), "after"], ids=["before undo", "after undo"])
def test_a_release_cut_short_is_finished_at_the_next_start(build, effect: ScriptedEffect, death) -> None:
    """The slices stay held until the next agent has the proof; then they are free."""
    house = build(effect=effect)
    lease = house.grant(user(), cus=64)
    effect.script = {"undo": [death]}
    house.agent.release(user(), lease.id, 0)
    until(lambda: effect.calls["undo"])
    assert house.state(lease.id) is LeaseState.RELEASING
    assert [held.state for held in house.ledger.held()] == [SliceState.CLEANING]
    house.die()
    house = build(effect=effect)
    house.settle()
    assert house.state(lease.id) is LeaseState.RELEASED
    assert house.ledger.held() == ()
    consistent(house, effect)


def test_a_death_before_the_booking_leaves_nothing(build, effect: ScriptedEffect, monkeypatch) -> None:
    """The transaction of the booking is all or nothing."""
    house = build(effect=effect)

    def die(*_: object) -> None:
        raise DeathError

    monkeypatch.setattr(house.planner, "limits", die)
    with pytest.raises(DeathError):
        house.agent.grant(user(), order_of(cus=8))
    house.die()
    house = build(effect=effect)
    assert house.ledger.leases() == ()
    consistent(house, effect)


def test_an_active_lease_is_as_it_was_after_a_restart(build, effect: ScriptedEffect) -> None:
    """A restart changes nothing about a lease that runs."""
    house = build(effect=effect)
    lease = house.grant(user(), cus=8)
    house.die()
    house = build(effect=effect)
    house.look()
    assert house.ledger.lease(lease.id) == lease
    assert effect.calls == {"apply": 1, "verify": 1}


def test_a_new_boot_ends_everything_before_it(build, effect: ScriptedEffect, clock: TurnedClock) -> None:
    """Active, preparing, releasing and queued leases of an older boot end, and all is free again."""
    house = build(effect=effect)
    house.grant(admin(), cus=64, anchor=AnchorKind.EXTERNAL)
    effect.script = {"verify": [DeathError()], "undo": [DeathError()]}
    with pytest.raises(DeathError):
        house.grant(admin(), cus=16)
    releasing = house.grant(admin(), cus=16)
    house.agent.release(admin(), releasing.id, 0)
    until(lambda: effect.calls["undo"])
    ended = [lease.id for lease in house.ledger.live()]
    assert len(ended) == 3
    queued = house.grant(user(), count=2, wait=600)
    house.die()
    clock.reboot()
    effect.script = {}
    house = build(effect=effect)
    house.settle()
    assert {house.state(lease) for lease in ended} == {LeaseState.RELEASED}
    assert house.state(queued.id) is LeaseState.CANCELLED
    assert house.ledger.held() == ()
    assert effect.world == set()
    assert house.grant(count=2).state is LeaseState.ACTIVE


def test_a_request_id_of_an_older_boot_is_new(build, clock: TurnedClock) -> None:
    """Its lease ended with the boot, so the same id asks afresh."""
    house = build()
    first = house.grant(user(), cus=8, request_id="a")
    house.die()
    clock.reboot()
    house = build()
    house.settle()
    assert house.grant(user(), cus=8, request_id="a").id > first.id


def test_ids_grow_through_crashes_and_reboots(build, clock: TurnedClock) -> None:
    """No lease id comes twice or goes back, whatever happens between two leases."""
    ids = []
    for number in range(4):
        house = build()
        ids += [house.grant(cus=2).id, house.grant(cus=2).id]
        house.die()
        if number % 2:
            clock.reboot()
    assert ids == sorted(set(ids))


def test_a_lease_whose_device_vanished_meanwhile_ends(build) -> None:
    """Found at the start: the device of a live lease is not there any more."""
    house = build("mi210")
    device = house.agent.inventory().devices[0]
    lease = house.grant(cus=8, device=(device.key,))
    house.die()
    vanish(house.root, device.kfd_node)
    house = build("mi210")
    house.settle()
    assert house.ledger.lease(lease.id).reason.startswith(f"device {device.key} vanished; ")
    assert house.kinds(lease)[-2:] == ["lost", "quarantined"]


def test_two_deaths_in_a_row_change_nothing(build, effect: ScriptedEffect) -> None:
    """Death while recovering from a death: the third agent still finishes."""
    house = build(effect=effect)
    effect.script = {"apply": ["after"], "verify": []}
    with pytest.raises(DeathError):
        house.grant(user(), cus=64)
    house.die()
    effect.script = {"apply": ["after"]}
    with pytest.raises(DeathError):
        build(effect=effect)
    house = build(effect=effect)
    (lease,) = house.ledger.live()
    assert lease.state is LeaseState.ACTIVE
    consistent(house, effect)
