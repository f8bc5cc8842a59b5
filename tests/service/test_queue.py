"""The queue: who waits, in which order, and what ends the wait."""

from __future__ import annotations

from service_builders import House, admin, order_of, user, vanish
from service_world import TurnedClock

from nodeagent.domain.lease import AnchorKind, LeaseState
from nodeagent.domain.refusals import Refusal
from nodeagent.domain.request import Priority, Request, SliceRequest
from nodeagent.service.orders import Queued


def full(house: House):
    """A lease of both devices as a whole."""
    return house.grant(admin(), count=2, anchor=AnchorKind.EXTERNAL)


def test_what_does_not_fit_now_may_wait(house: House) -> None:
    """With a wait the answer is a queued lease that holds nothing; without it a refusal."""
    full(house)
    outcome = house.agent.grant(user(), order_of(cus=8, wait=60))
    assert isinstance(outcome, Queued)
    assert outcome.lease.state is LeaseState.QUEUED
    assert outcome.lease.slices == ()
    assert isinstance(house.agent.grant(user(), order_of(cus=8)), Refusal)


def test_what_can_never_fit_does_not_wait(house: House) -> None:
    """More than the node has is refused at once, also with a wait."""
    full(house)
    assert isinstance(house.agent.grant(user(), order_of(cus=65, wait=60)), Refusal)
    assert isinstance(house.agent.grant(user(), order_of(count=3, wait=60)), Refusal)


def test_a_release_grants_those_who_wait_in_their_order(house: House) -> None:
    """First come, first served, among requests that compete for the same."""
    blocker = full(house)
    waiting = [house.grant(user(), cus=64, wait=600) for _ in range(3)]
    house.release(blocker)
    house.look()
    assert [house.state(lease.id) for lease in waiting] == [
        LeaseState.ACTIVE,
        LeaseState.ACTIVE,
        LeaseState.QUEUED,
    ]


def test_priority_goes_before_age(house: House) -> None:
    """Of those that compete for the same, high is granted before normal and normal before low."""
    blocker = full(house)
    waiting = {
        priority: house.grant(
            admin(), wait=600, request=Request(slices=(SliceRequest(count=2),), priority=priority)
        )
        for priority in (Priority.LOW, Priority.NORMAL, Priority.HIGH)
    }
    for priority in (Priority.HIGH, Priority.NORMAL, Priority.LOW):
        house.release(blocker)
        house.look()
        blocker = waiting.pop(priority)
        assert house.state(blocker.id) is LeaseState.ACTIVE
        assert all(house.state(lease.id) is LeaseState.QUEUED for lease in waiting.values())


def test_one_that_does_not_fit_yet_holds_nobody_up(house: House) -> None:
    """A small request behind a large one is granted as soon as it fits."""
    one, _ = (house.grant(admin(), cus=64) for _ in range(2))
    large = house.grant(user(), count=2, wait=600)
    small = house.grant(user(), cus=8, wait=600)
    house.release(one)
    house.look()
    assert house.state(large.id) is LeaseState.QUEUED
    assert house.state(small.id) is LeaseState.ACTIVE


def test_everyone_in_a_long_queue_gets_a_turn(house: House) -> None:
    """More than a page of requests that do not fit yet does not hide those behind it."""
    one, _ = (house.grant(admin(), cus=64) for _ in range(2))
    for _ in range(105):
        house.grant(admin(), count=2, wait=600)
    last = house.grant(admin(), cus=8, wait=600)
    house.release(one)
    house.look()
    assert house.state(last.id) is LeaseState.ACTIVE


def test_a_wait_ends_at_its_deadline(house: House, clock: TurnedClock) -> None:
    """The queued lease is cancelled with the reason."""
    full(house)
    lease = house.grant(user(), cus=8, wait=60)
    clock.turn(59)
    house.look()
    assert house.state(lease.id) is LeaseState.QUEUED
    clock.turn(1)
    house.look()
    assert house.state(lease.id) is LeaseState.CANCELLED
    assert house.kinds(lease) == ["queued", "cancelled"]


def test_a_wait_ends_with_the_process_that_asked(house: House, children) -> None:
    """A queued lease whose requester is gone is cancelled, whether its anchor is armed or not."""
    full(house)
    asking = children.sleeper()
    leases = [
        house.grant(user(pid=asking.pid), cus=8, wait=60, anchor=kind)
        for kind in (AnchorKind.CGROUP, AnchorKind.PROCESS)
    ]
    house.look()
    assert {house.state(lease.id) for lease in leases} == {LeaseState.QUEUED}
    asking.kill()
    asking.wait()
    house.look()
    assert {house.state(lease.id) for lease in leases} == {LeaseState.CANCELLED}


def test_time_in_the_queue_is_no_lease_time(house: House, clock: TurnedClock) -> None:
    """The ttl counts from the grant, not from the request."""
    blocker = full(house)
    lease = house.grant(user(), cus=8, ttl=100, wait=600)
    clock.turn(300)
    house.release(blocker)
    house.look()
    clock.turn(99)
    house.look()
    assert house.state(lease.id) is LeaseState.ACTIVE
    clock.turn(1)
    house.look()
    assert house.state(lease.id) is LeaseState.RELEASED


def test_a_queue_survives_a_restart(build) -> None:
    """Who waited before waits after, and is granted."""
    house = build()
    blocker = full(house)
    lease = house.grant(user(), cus=8, wait=600)
    house.die()
    house = build()
    assert house.state(lease.id) is LeaseState.QUEUED
    house.agent.release(admin(), blocker.id, 5)
    house.look()
    assert house.state(lease.id) is LeaseState.ACTIVE


def test_a_queued_lease_can_be_cancelled_by_its_holder(house: House) -> None:
    """Releasing a queued lease cancels it."""
    full(house)
    lease = house.grant(user(), cus=8, wait=600)
    assert house.release(lease, user()).state is LeaseState.CANCELLED


def test_a_request_for_a_vanished_device_does_not_stop_the_queue(build) -> None:
    """After a restart without the device that one waits for, those behind it are granted."""
    house = build("mi210")
    kept, lost, *_ = house.agent.inventory().devices
    house.grant(admin(), device=(lost.key,), anchor=AnchorKind.EXTERNAL)
    blocker = house.grant(admin(), device=(kept.key,), anchor=AnchorKind.EXTERNAL)
    house.grant(user(), device=(lost.key,), wait=600)
    behind = house.grant(user(), cus=8, device=(kept.key,), wait=600)
    house.die()
    vanish(house.root, lost.kfd_node)
    house = build("mi210")
    house.settle()
    assert house.agent.inventory().device(lost.key) is None
    house.agent.release(admin(), blocker.id, 5)
    house.look()
    assert house.state(behind.id) is LeaseState.ACTIVE


def test_who_comes_to_wait_is_told_its_place_at_once(house: House) -> None:
    """Before the reconciler's look, and as that will have it: among those who want the same devices."""
    full(house)
    first = house.agent.grant(user(), order_of(cus=8, wait=600)).lease
    second = house.agent.grant(user(1001), order_of(cus=8, wait=600)).lease
    high = Request(slices=(SliceRequest(cus=8),), priority=Priority.HIGH)
    urgent = house.agent.grant(admin(), order_of(wait=600, request=high)).lease
    told = [house.agent.standing(one).position for one in (first, second, urgent)]
    house.look()
    assert told == [1, 2, 1]
    assert [house.agent.standing(one).position for one in (first, second, urgent)] == [2, 3, 1]


def test_a_repeated_request_finds_its_place_in_the_queue(house: House) -> None:
    """The same request id is the same queued lease, and later the same granted one."""
    blocker = full(house)
    first = house.agent.grant(user(), order_of(cus=8, wait=600, request_id="a"))
    again = house.agent.grant(user(), order_of(cus=8, wait=600, request_id="a"))
    assert isinstance(again, Queued) and not again.fresh
    assert again.lease == first.lease
    house.release(blocker)
    house.look()
    granted = house.agent.grant(user(), order_of(cus=8, wait=600, request_id="a"))
    assert granted.lease.id == first.lease.id
    assert granted.lease.state is LeaseState.ACTIVE
