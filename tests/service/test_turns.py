"""Turns in the queue: what is kept for those who wait, from whom, for how long; and who passes."""

from __future__ import annotations

import pytest
from service_builders import House, admin, order_of, user
from service_world import TurnedClock

from nodeagent.config import Limits
from nodeagent.domain.lease import AnchorKind, HolderKind, LeaseState
from nodeagent.domain.refusals import Code, Refusal
from nodeagent.domain.request import Priority, Request, SliceRequest
from nodeagent.service import queue
from nodeagent.service.orders import Granted, Queued

ENDLESS = {"anchor": AnchorKind.EXTERNAL}
WHOLE = {"count": 2}  # every device of the node


def half(house: House, **more):
    """Another's lease of half of each device."""
    return house.grant(admin(), cus=32, count=2, **{**ENDLESS, **more})


def ask(house: House, caller=None, **order):
    return house.agent.grant(caller or user(2000), order_of(**order))


def refused(outcome) -> bool:
    return isinstance(outcome, Refusal) and outcome.code is Code.CARD_RESERVED


def standing(house: House, lease):
    return house.agent.standing(house.ledger.lease(lease.id))


def test_small_requests_do_not_starve_a_large_one(house: House, clock: TurnedClock) -> None:
    """What fits and would delay the one that waits is refused, and says who waits and until when."""
    half(house)
    large = house.grant(user(), **WHOLE, wait=600)
    house.look()
    outcome = ask(house, cus=8)
    assert refused(outcome)
    assert outcome.blockers == (large.id,)
    assert outcome.earliest_ns == clock.boot_ns() + 600 * 10**9
    assert isinstance(ask(house, cus=8, wait=60), Queued)


def test_what_frees_is_not_snatched_from_who_waits(house: House) -> None:
    """Between a release and the next look at the queue, a new request gets nothing of what was waited for."""
    first = half(house)
    large = house.grant(user(), **WHOLE, wait=600)
    house.look()
    house.release(first)
    assert refused(ask(house, cus=8))
    house.look()
    assert house.state(large.id) is LeaseState.ACTIVE


def test_a_request_that_ends_in_time_passes(house: House) -> None:
    """Backfill: who will have ended when the first one starts may use the time until then."""
    half(house, ttl=600)
    house.grant(user(), **WHOLE, wait=3000)
    house.look()
    assert isinstance(ask(house, cus=8, ttl=600), Granted)
    assert refused(ask(house, cus=8, ttl=601))


def test_who_passes_is_not_renewed_beyond_the_start_of_who_waits(house: House, clock: TurnedClock) -> None:
    """The lease that passed ends in time however often it renews; one that was there before is renewed."""
    before = half(house, ttl=600)
    large = house.grant(user(), **WHOLE, wait=3000)
    house.look()
    passed = ask(house, cus=8, ttl=300).lease
    clock.turn(200)
    house.agent.renew(user(2000), passed.id, 5000)
    assert house.ledger.lease(passed.id).anchor.deadline_ns == clock.boot_ns() + 400 * 10**9
    house.agent.renew(admin(), before.id, 600)
    assert house.ledger.lease(before.id).anchor.deadline_ns == clock.boot_ns() + 600 * 10**9
    house.release(before)
    clock.turn(400)
    house.look()
    house.look()
    assert house.state(large.id) is LeaseState.ACTIVE


def test_devices_that_nobody_waits_for_are_granted(house: House) -> None:
    """Only the devices that the first one needs are kept for it."""
    one, other = house.agent.inventory().devices
    house.grant(admin(), device=(one.key,), **ENDLESS)
    house.grant(user(), device=(one.key,), wait=600)
    house.look()
    assert isinstance(ask(house, device=(other.key,)), Granted)


def test_what_leaves_enough_passes(house: House) -> None:
    """A request without end passes where the one that waits fits beside it."""
    house.grant(admin(), cus=48, count=2, **ENDLESS)
    house.grant(user(), cus=32, count=2, wait=600)
    house.look()
    assert isinstance(ask(house, admin(), cus=16, **ENDLESS), Granted)


def test_each_device_is_kept_for_one(house: House) -> None:
    """Two that wait for different devices are both first; one that stands behind keeps nothing."""
    one, other = house.agent.inventory().devices
    house.grant(admin(), cus=32, count=2, **ENDLESS)
    waiting = [
        house.grant(user(uid), device=(device.key,), wait=600)
        for uid, device in ((1000, one), (1001, other), (1002, one))
    ]
    house.look()
    assert [standing(house, lease).position for lease in waiting] == [1, 1, 2]
    kept = {one.waiting.lease for one in house.queue.kept(Request(), HolderKind.CLIENT)}
    assert kept == {waiting[0].id, waiting[1].id}


def test_owners_take_turns(house: House) -> None:
    """The first request of each user goes before the second of any, whoever came first."""
    blocker = house.grant(admin(), **WHOLE, **ENDLESS)
    many = [house.grant(user(1000), **WHOLE, wait=600) for _ in range(3)]
    one = house.grant(user(1001), **WHOLE, wait=600)
    house.look()
    order = sorted((*many, one), key=lambda lease: standing(house, lease).position)
    assert [lease.id for lease in order] == [many[0].id, one.id, many[1].id, many[2].id]
    house.release(blocker)
    house.look()
    house.release(many[0])
    house.look()
    assert house.state(one.id) is LeaseState.ACTIVE


def test_low_priority_waits_no_longer_than_an_hour_for_others(house: House, clock: TurnedClock) -> None:
    """After an hour `low` stands where it came, before what was asked for since."""
    half(house)
    low = Request(slices=(SliceRequest(count=2),), priority=Priority.LOW)
    old = house.grant(user(1000), request=low, wait=9000)
    new = house.grant(user(1001), **WHOLE, wait=9000)
    house.look()
    assert standing(house, old).position == 2
    clock.turn(3600)
    house.look()
    assert (standing(house, old).position, standing(house, new).position) == (1, 2)


def test_who_stands_in_its_own_way_keeps_nothing(house: House) -> None:
    """Nobody can block a node by waiting for a device that he has a small lease of himself."""
    house.grant(user(), cus=8, ttl=80_000)
    house.grant(user(), **WHOLE, wait=80_000)
    house.look()
    assert isinstance(ask(house, admin(), cus=8, **ENDLESS), Granted)


def test_a_users_requests_keep_devices_half_of_the_time(build, clock: TurnedClock) -> None:
    """Whoever queues for what never comes keeps others out for a while, and then for as long does not."""
    house = build(config={"limits": Limits(keep_seconds=100)})
    half(house)
    for _ in range(3):
        house.grant(user(), **WHOLE, wait=80_000)
    seen = []
    for _ in range(40):
        house.look()
        seen.append(
            refused(ask(house, admin(), cus=64)) or bool(house.queue.kept(Request(), HolderKind.CLIENT))
        )
        clock.turn(10)
    assert seen == ([True] * 10 + [False] * 10) * 2


def test_nothing_is_kept_for_longer_than_it_waits(house: House, clock: TurnedClock) -> None:
    """The end of a wait is the end of what was kept, before anybody looks at the queue again."""
    half(house)
    house.grant(user(), **WHOLE, wait=60)
    house.look()
    clock.turn(60)
    assert isinstance(ask(house, cus=8), Granted)


def test_nothing_is_kept_where_waiting_does_not_help(house: House, children) -> None:
    """A request that waits for a drained device keeps nothing from others."""
    one, other = house.agent.inventory().devices
    half(house)
    house.grant(user(), **WHOLE, wait=600)
    house.agent.drain(admin(), one.key)
    house.look()
    assert isinstance(ask(house, cus=8, device=(other.key,)), Granted)


@pytest.mark.parametrize("waits_as", list(Priority))
def test_higher_priorities_pass(house: House, waits_as: Priority) -> None:
    """What is kept is kept from requests of the same priority or a lower one alone."""
    house.grant(user(), cus=32, count=2, ttl=600)
    house.grant(admin(), request=Request((SliceRequest(count=2),), priority=waits_as), wait=600)
    house.look()
    order = list(Priority)
    for priority in Priority:
        small = Request((SliceRequest(cus=8),), priority=priority)
        passes = order.index(priority) < order.index(waits_as)
        assert refused(ask(house, admin(), request=small)) is not passes


def test_jobs_of_slurm_do_not_queue_behind_users(house: House) -> None:
    """Slurm has given a job its device: whoever waits for that one, the job gets what is free of it."""
    half(house)
    house.grant(user(), **WHOLE, wait=600)
    house.look()
    job = order_of(cus=8, holder=(HolderKind.SLURM, "42"), **ENDLESS)
    assert isinstance(house.agent.grant(admin(), job), Granted)


def test_the_earliest_start_is_told(house: House, clock: TurnedClock) -> None:
    """At the next look, from the known ends of what is in the way; it is not known where one is not."""
    half(house, ttl=600)
    first = house.grant(user(1000), **WHOLE, wait=3000)
    assert standing(house, first) == queue.Standing(position=1, earliest_ns=None)
    house.look()
    assert standing(house, first).earliest_ns == clock.boot_ns() + 600 * 10**9
    house.grant(admin(), request=Request((SliceRequest(cus=8),), priority=Priority.HIGH), **ENDLESS)
    behind = house.grant(user(1001), **WHOLE, wait=3000)
    house.look()
    assert standing(house, first).earliest_ns is None
    assert standing(house, behind).earliest_ns is None
    assert standing(house, behind).position == 2


def test_turns_survive_a_restart(build) -> None:
    """The line, and what is kept for its head, are the same after the agent was killed."""
    house = build()
    half(house)
    many = [house.grant(user(1000), **WHOLE, wait=600) for _ in range(2)]
    one = house.grant(user(1001), **WHOLE, wait=600)
    house.look()
    before = [standing(house, lease) for lease in (*many, one)]
    house.die()
    house = build()
    assert [standing(house, lease) for lease in (*many, one)] == before
    assert refused(ask(house, cus=8))


def test_those_who_left_keep_nothing(house: House) -> None:
    """When the last one who waited has gone, everything is as without a queue."""
    half(house)
    large = house.grant(user(), **WHOLE, wait=600)
    house.look()
    house.release(large, user())
    house.look()
    assert isinstance(ask(house, cus=8), Granted)
    assert standing(house, large) is None


def test_who_is_slow_to_place_delays_nobody(house: House, clock: TurnedClock, monkeypatch) -> None:
    """For a request that takes long to search for nothing is kept, and those behind it have their turn."""
    half(house)
    slow = house.grant(user(1000), **WHOLE, wait=3000)
    behind = house.grant(user(1001), **WHOLE, wait=3000)
    times = iter((0.0,))
    monkeypatch.setattr(queue.time, "thread_time", lambda: next(times, queue.SLOW_SECONDS + 0.1))
    house.look()
    monkeypatch.undo()
    urgent = Request((SliceRequest(cus=8),), priority=Priority.HIGH)
    for seconds, kept in ((59, behind), (1, slow)):
        assert [one.waiting.lease for one in house.queue.kept(Request(), HolderKind.CLIENT)] == [behind.id]
        house.grant(admin(), request=urgent, **ENDLESS)  # what was known is old
        clock.turn(seconds)
        house.look()
        assert [one.waiting.lease for one in house.queue.kept(Request(), HolderKind.CLIENT)] == [kept.id]
