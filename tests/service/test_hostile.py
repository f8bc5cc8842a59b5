"""What one user does must not stop the agent for the others."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator

import pytest
from service_builders import House, admin, order_of, outside, until, user
from service_world import ScriptedEffect, TurnedClock

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.processes import start_time_of
from nodeagent.domain.errors import InvalidField, NotAllowed, TooMany
from nodeagent.domain.lease import AnchorKind, LeaseState, SliceState
from nodeagent.domain.refusals import Refusal
from nodeagent.service import placing
from nodeagent.service.cleaners import CLEANERS
from nodeagent.service.quotas import CALLS_SAVED, QuotaLimits, Quotas


@pytest.fixture
def thread_id() -> Iterator[int]:
    """The number of a thread of this process that is not its first."""
    found: list[int] = []
    started, done = threading.Event(), threading.Event()

    def stay() -> None:
        found.append(ctypes.CDLL(None).gettid())
        started.set()
        done.wait(60)

    thread = threading.Thread(target=stay)
    thread.start()
    started.wait(10)
    yield found[0]
    done.set()
    thread.join()


def test_leases_that_do_not_end_hold_up_nobody(build, children) -> None:
    """More releases that wait for their proof than there are cleaners: another user's is done meanwhile."""
    house = build(timeout=3600)
    holders = [children.sleeper() for _ in range(CLEANERS * 2)]
    for holder in holders:
        held = {"anchor": AnchorKind.PROCESS, "pid": holder.pid}
        lease = house.grant(admin(), cu_shared=True, vram_bytes=1 << 20, **held)
        house.agent.release(admin(), lease.id)
    mine = house.grant(user(), cus=8)
    assert house.release(mine, user()).state is LeaseState.RELEASED
    for holder in holders:
        holder.kill()
        holder.wait()
    house.settle()
    assert not house.ledger.held()


def test_an_unforeseen_fault_of_one_lease_stops_nothing(
    house: House, clock: TurnedClock, monkeypatch
) -> None:
    """Neither the look at the other leases nor the thread ends by a fault that nobody thought of."""
    sick, other = house.grant(user(), cus=8, ttl=100), house.grant(user(1001), cus=8, ttl=100)
    look = house.anchors.dead

    def dead(lease):
        if lease.id == sick.id:
            raise UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed")
        return look(lease)

    monkeypatch.setattr(house.anchors, "dead", dead)
    clock.turn(100)
    house.look()
    assert (house.state(sick.id), house.state(other.id)) == (LeaseState.ACTIVE, LeaseState.RELEASED)


@pytest.mark.parametrize("fault", [TypeError("int(None)"), outside()])
def test_a_fault_while_undoing_is_no_proof(build, effect: ScriptedEffect, monkeypatch, fault) -> None:
    """Whatever an effect raises, the lease ends and its slice is quarantined, not cleaning for ever."""
    house = build(effect=effect)
    lease = house.grant(user(), cus=8)

    def undo(arguments, evidence):
        raise fault

    monkeypatch.setattr(effect, "undo", undo)
    ended = house.release(lease, user())
    assert (ended.state, ended.slices[0].state) == (LeaseState.FAILED, SliceState.QUARANTINED)


def test_an_unforeseen_fault_while_preparing_leaves_nothing_held(
    build, effect: ScriptedEffect, monkeypatch
) -> None:
    """The caller gets the fault; nothing stays booked."""
    house = build(effect=effect)

    def apply(arguments):
        raise TypeError("nobody thought of it")

    monkeypatch.setattr(effect, "apply", apply)
    with pytest.raises(TypeError):
        house.grant(user(), cus=8)
    house.settle()
    assert not house.ledger.held()


def test_nobody_waits_for_anothers_search(house: House, monkeypatch) -> None:
    """Placing, which a request can make long, is done without the lock that every write needs."""
    free: list[bool] = []
    place = placing.place

    def watched(*args, **options):
        with house.ledger.write(release=True):
            free.append(True)
        return place(*args, **options)

    monkeypatch.setattr(placing, "place", watched)
    house.grant(user(), cus=8)
    assert isinstance(house.agent.grant(user(), order_of(cus=10_000)), Refusal)
    assert len(free) == 2


def test_a_placement_that_was_overtaken_is_made_again(house: House, monkeypatch) -> None:
    """Slices that another took between the search and the booking are not given twice."""
    place, taken = placing.place, []

    def overtaken(*args, **options):
        found = place(*args, **options)
        if not taken:
            taken.append(True)
            taken.append(house.grant(user(1001), cus=8))
        return found

    monkeypatch.setattr(placing, "place", overtaken)
    mine, other = house.grant(user(), cus=8), taken[1]
    assert not set(mine.slices[0].placed.cus) & set(other.slices[0].placed.cus)


def test_a_thread_is_not_adopted(house: House, thread_id: int) -> None:
    """Only processes have an end that can be watched; the number of a thread names none."""
    assert start_time_of(thread_id) is not None
    with pytest.raises(InvalidField) as caught:
        house.grant(admin(), cus=8, anchor=AnchorKind.PROCESS, pid=thread_id)
    assert caught.value.field == "anchor.pid"


@pytest.mark.cgroup2
@pytest.mark.parametrize("name", [b"byte\xff", b"escape\x1b[31m", "turned\u202e".encode()])
def test_a_cgroup_that_cannot_be_written_down_is_refused(
    build, tree: CgroupTree, children, name: bytes
) -> None:
    """A name that a delegated subtree's owner chose: no UTF-8, or a terminal's commands."""
    house = build(tree=tree)
    at = tree.mount / os.fsdecode(name)
    at.mkdir()
    child = children.sleeper()
    try:
        (at / "cgroup.procs").write_text(str(child.pid))
        with pytest.raises(NotAllowed):
            house.grant(user(pid=child.pid), cus=8)
        assert not house.ledger.held()
        house.look()
    finally:
        child.kill()
        child.wait()
        until(lambda: "populated 0" in (at / "cgroup.events").read_text())
        at.rmdir()


def test_attaches_and_renewals_without_end_are_refused(clock: TurnedClock) -> None:
    """A whole job's ranks may come at once; a loop may not, and another user and root are not affected."""
    quotas = Quotas(QuotaLimits(grants_per_second=5), clock, lambda uid: uid)
    for _ in range(CALLS_SAVED):
        quotas.take_call(user())
    with pytest.raises(TooMany):
        quotas.take_call(user())
    quotas.take_call(user(1001))
    quotas.take_call(admin())
    clock.turn(1)
    quotas.take_call(user())


def test_a_renewal_counts_as_a_call(house: House, monkeypatch) -> None:
    """The limit is asked before anything is written."""
    lease = house.grant(user(), cus=8)

    def no_more(caller):
        raise TooMany("more", retry_after=1)

    monkeypatch.setattr(house.quotas, "take_call", no_more)
    for act in (house.agent.renew, house.agent.attach):
        with pytest.raises(TooMany):
            act(user(), lease.id)
    assert house.kinds(lease) == ["granted"]


def test_a_containers_root_sees_no_events_of_the_hosts_root(house: House) -> None:
    """It is uid 0 as well, but none of root's doings are its own."""
    house.grant(admin(), cus=8)
    assert house.agent.events(user(0)) == ()
    assert house.agent.events(admin())
