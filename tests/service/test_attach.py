"""Attach and renew where the agent may make no cgroups: by pid and start time alone."""

from __future__ import annotations

import pytest
from service_builders import House, admin, user
from service_world import TurnedClock

from nodeagent.domain.errors import InvalidField, NotAllowed, StaleLease, UnknownThing
from nodeagent.domain.lease import AnchorKind, LeaseState, SliceState


def test_without_cgroups_the_attached_process_is_the_anchor(house: House, children) -> None:
    """Armed with the peer's pid and start time; its end ends the lease, and nobody signals it."""
    caller = children.peer(administrator=True)
    lease = house.grant(admin(), cus=8, anchor=AnchorKind.CGROUP)
    assert lease.cgroup is None
    attached = house.agent.attach(caller, lease.id)
    assert (attached.anchor.kind, attached.anchor.pid) == (AnchorKind.PROCESS, caller.pid)
    assert attached.anchor.armed
    house.look()
    assert house.state(lease.id) is LeaseState.ACTIVE
    children.end(caller.pid)
    house.look()
    assert house.state(lease.id) is LeaseState.RELEASED


def test_a_process_lease_is_free_only_when_the_process_ended(house: House, children) -> None:
    """Released while it runs, its slice is quarantined; the process goes on until it ends by itself."""
    caller = children.peer(administrator=True)
    lease = house.grant(admin(), cus=8, anchor=AnchorKind.CGROUP)
    house.agent.attach(caller, lease.id)
    assert house.release(lease).state is LeaseState.FAILED
    assert [held.state for held in house.ledger.held()] == [SliceState.QUARANTINED]
    assert house.ledger.quarantined()
    children.end(caller.pid)
    house.agent.clear_lease(admin(), lease.id)
    assert house.ledger.held() == ()


def test_attaching_over_and_over_grows_no_journal(house: House, children) -> None:
    """One process is one effect, however often it attaches: threat 20."""
    caller = children.peer(administrator=True)
    lease = house.grant(admin(), cus=8, anchor=AnchorKind.CGROUP)
    for _ in range(3):
        house.agent.attach(caller, lease.id)
    assert [record.kind for record in house.ledger.effects(lease.id)].count("process") == 1


def test_every_attached_process_holds_the_slice(house: House, children) -> None:
    """Two attached: the slice is free only when both have ended."""
    callers = [children.peer(administrator=True) for _ in range(2)]
    lease = house.grant(admin(), cus=8)
    for caller in callers:
        house.agent.attach(caller, lease.id)
    assert house.release(lease).state is LeaseState.FAILED
    for caller, left in zip(callers, (1, 0), strict=True):
        children.end(caller.pid)
        house.agent.clear_lease(admin(), lease.id)
        assert len(house.ledger.held()) == left


def test_others_attach_and_renew_nothing(house: House) -> None:
    """The owner or an administrator; a container's root owns nothing, not even uid 0's leases."""
    mine, roots = house.grant(user(), cus=8), house.grant(admin(), cus=8)
    for caller, lease in ((user(1001), mine), (user(0), mine), (user(0), roots), (user(), roots)):
        with pytest.raises(NotAllowed):
            house.agent.attach(caller, lease.id)
        with pytest.raises(NotAllowed):
            house.agent.renew(caller, lease.id)


def test_an_ended_lease_is_stale(house: House) -> None:
    """Its id fences the late caller out, with the state and the reason."""
    lease = house.grant(user(), cus=8)
    house.release(lease, user())
    for act in (house.agent.attach, house.agent.renew):
        with pytest.raises(StaleLease, match="released by its holder"):
            act(user(), lease.id)


def test_an_unknown_lease_is_unknown(house: House) -> None:
    """UnknownThing from every verb."""
    for act in (house.agent.attach, house.agent.renew, house.agent.lease, house.agent.clear_lease):
        with pytest.raises(UnknownThing):
            act(admin(), 4711)
    for act in (house.agent.drain, house.agent.undrain, house.agent.clear):
        with pytest.raises(UnknownThing):
            act(admin(), "0000:00:00.0/9")


def test_a_lease_that_lives_by_its_holder_is_not_renewed(house: House, children) -> None:
    """NotAllowed, unless the renewal itself sets a time."""
    child = children.sleeper()
    lease = house.grant(user(pid=child.pid), cus=8, anchor=AnchorKind.PROCESS)
    with pytest.raises(NotAllowed, match="by its process"):
        house.agent.renew(user(), lease.id)
    assert house.agent.renew(user(), lease.id, 100).anchor.ttl_seconds == 100
    assert house.kinds(lease)[-1] == "renewed"


def test_a_renewal_keeps_to_the_sites_bound(house: House, clock: TurnedClock) -> None:
    """InvalidField on ttl_seconds; the lease keeps the time it had."""
    lease = house.grant(user(), cus=8, ttl=100)
    with pytest.raises(InvalidField, match="ttl_seconds"):
        house.agent.renew(user(), lease.id, 10_000_000)
    clock.turn(100)
    house.look()
    assert house.state(lease.id) is LeaseState.RELEASED
