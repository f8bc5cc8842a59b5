"""Release: free only with proof, else quarantined, and never in the way of anybody else."""

from __future__ import annotations

import os
import threading

import pytest
from service_builders import House, admin, order_of, outside, until, user
from service_world import SCRIPTED, ScriptedEffect

from nodeagent.domain.errors import NotAllowed, StaleLease, UnknownThing
from nodeagent.domain.lease import AnchorKind, HolderKind, LeaseState, SliceState
from nodeagent.domain.refusals import Refusal
from nodeagent.service.effects import Pending
from nodeagent.service.reconcile import Periods

STUCK = ["memory is still charged"] * 10_000


def test_releasing_twice_is_success(house: House) -> None:
    """The second release says what the first did."""
    lease = house.grant(user(), cus=8)
    first, again = house.release(lease, user()), house.release(lease, user())
    assert first == again
    assert first.state is LeaseState.RELEASED
    assert house.kinds(lease) == ["granted", "releasing", "released"]


def test_many_releases_at_once_are_one(house: House) -> None:
    """From several threads: each gets the same end, and it is written once."""
    lease = house.grant(user(), cus=8)
    threads = [threading.Thread(target=house.release, args=(lease, user())) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert house.kinds(lease) == ["granted", "releasing", "released"]


def test_a_lease_that_never_was_is_unknown(house: House) -> None:
    """UnknownThing, for the API to answer as it promises."""
    with pytest.raises(UnknownThing):
        house.agent.release(user(), 4711, 0)


def test_only_the_holder_and_administrators_release(house: House) -> None:
    """Another user, and a container's root, are refused; the lease goes on."""
    lease = house.grant(user(), cus=8)
    for other in (user(1001), user(0)):
        with pytest.raises(NotAllowed):
            house.agent.release(other, lease.id, 0)
    assert house.state(lease.id) is LeaseState.ACTIVE
    assert house.release(lease, admin()).state is LeaseState.RELEASED


def test_a_slice_is_held_while_its_proof_waits(build, effect: ScriptedEffect) -> None:
    """Until the undo is proved the slice is cleaning and nobody else's; a short wait says so."""
    effect.script = {"undo": STUCK}
    house = build(effect=effect, timeout=60)
    lease = house.grant(user(), cus=64)
    assert house.agent.release(user(), lease.id, 0.01).state is LeaseState.RELEASING
    assert [held.state for held in house.ledger.held()] == [SliceState.CLEANING]
    until(lambda: effect.calls["undo"] > 3)
    effect.script.clear()
    assert house.release(lease, user()).state is LeaseState.RELEASED
    assert house.ledger.held() == ()


def quarantined(build, effect: ScriptedEffect, **changes):
    """A house with one lease of half of a device that could not be proved clean."""
    house = build(effect=effect, **changes)
    device = house.agent.inventory().devices[0].key
    lease = house.grant(user(), cus=32, device=(device,))
    effect.script = {"undo": list(STUCK)}
    lease = house.release(lease, user())
    return house, lease, device


def test_what_is_not_proved_in_time_is_quarantined(build, effect: ScriptedEffect) -> None:
    """The lease ends FAILED with the reason; its slice is kept from everybody."""
    house, lease, _ = quarantined(build, effect)
    assert lease.state is LeaseState.FAILED
    assert lease.reason == "released by its holder; memory is still charged"
    (held,) = house.ledger.quarantined()
    assert held.lease == lease.id
    assert house.kinds(lease)[-1] == "quarantined"


def test_a_quarantined_slice_blocks_itself_only(build, effect: ScriptedEffect) -> None:
    """The other half of the device, and the holder's next lease, are granted."""
    house, lease, device = quarantined(build, effect)
    refusal = house.agent.grant(user(), order_of(cus=64, device=(device,)))
    assert isinstance(refusal, Refusal)
    assert refusal.blockers == (lease.id,)
    assert house.grant(user(), cus=32, device=(device,)).state is LeaseState.ACTIVE
    assert house.ledger.counts(1000).live == 1


@pytest.mark.parametrize("how", ["clear", "clear_lease", "retry", "restart"])
def test_a_quarantined_slice_is_freed_by_proof(build, effect: ScriptedEffect, how: str) -> None:
    """By an administrator's word, by the minute's look, or after a restart: once it is clean."""
    house, lease, device = quarantined(build, effect, periods=Periods(quarantine=0))
    house.agent.clear(admin(), device)
    assert len(house.ledger.quarantined()) == 1
    effect.script.clear()
    if how == "clear":
        house.agent.clear(admin(), device)
    elif how == "clear_lease":
        house.agent.clear_lease(admin(), lease.id)
    elif how == "retry":
        house.look()
    else:
        house.die()
        house = build(effect=effect)
    until(lambda: house.ledger.held() == ())
    assert house.state(lease.id) is LeaseState.FAILED
    assert house.kinds(lease)[-1] == "cleared"
    assert effect.world == set()
    assert house.grant(user(), cus=64, device=(device,))


def test_only_administrators_clear(build, effect: ScriptedEffect) -> None:
    """The holder of a quarantined slice cannot clear it."""
    house, lease, device = quarantined(build, effect)
    for act in (
        lambda: house.agent.clear(user(), device),
        lambda: house.agent.clear_lease(user(), lease.id),
        lambda: house.agent.drain(user(), device),
        lambda: house.agent.undrain(user(), device),
    ):
        with pytest.raises(NotAllowed):
            act()


@pytest.mark.parametrize("fault", [outside(), OSError(5, "input/output error")])
def test_a_node_that_refuses_the_undo_leads_to_quarantine(build, effect: ScriptedEffect, fault) -> None:
    """An undo that fails is no proof; the lease does not stay releasing for ever, nor its slice free."""
    house = build(effect=effect)
    lease = house.grant(user(), cus=8)
    effect.script = {"undo": [fault] * 10_000}
    assert house.release(lease, user()).state is LeaseState.FAILED
    assert len(house.ledger.quarantined()) == 1


def test_one_stuck_release_does_not_stop_others(build, effect: ScriptedEffect) -> None:
    """While one lease waits for its proof another one is released."""
    house = build(effect=effect, timeout=60)
    stuck, other = house.grant(user(), cus=8), house.grant(user(), cus=8)
    undo = effect.undo

    def undo_all_but_one(arguments, evidence):
        if arguments["lease"] == stuck.id and stuck.id in keeping:
            return Pending("kept by the test")
        return undo(arguments, evidence)

    keeping = {stuck.id}
    effect.undo = undo_all_but_one
    house.agent.release(user(), stuck.id, 0)
    assert house.release(other, user()).state is LeaseState.RELEASED
    assert house.state(stuck.id) is LeaseState.RELEASING
    keeping.clear()
    house.settle()


def test_a_process_that_merely_took_the_lease_frees_it_without_dying(house: House, children) -> None:
    """A holder outside every cgroup of ours that has no GPU open need not end for its slice to be free."""
    child = children.sleeper()
    lease = house.grant(user(pid=child.pid), cus=8, anchor=AnchorKind.PROCESS)
    assert house.release(lease, user()).state is LeaseState.RELEASED
    assert child.poll() is None


def test_a_process_with_the_gpu_open_keeps_its_slice(house: House, children) -> None:
    """Nothing is freed under a living process: while KFD knows the pid the slice is quarantined."""
    child = children.sleeper()
    lease = house.grant(user(pid=child.pid), cus=8, anchor=AnchorKind.PROCESS)
    known = house.root / "sys/class/kfd/kfd/proc" / str(child.pid)
    known.mkdir(parents=True)
    assert house.release(lease, user()).state is LeaseState.FAILED
    known.rmdir()
    assert child.poll() is None
    house.agent.clear_lease(admin(), lease.id)
    assert house.ledger.held() == ()


def test_an_adopted_process_is_never_signalled(house: House, children) -> None:
    """Released while it runs: the lease ends, the slice waits for the process, and that goes on."""
    child = children.sleeper()
    lease = house.grant(
        admin(),
        cus=8,
        anchor=AnchorKind.PROCESS,
        pid=child.pid,
        holder=(HolderKind.PROCESS, str(child.pid)),
    )
    assert house.release(lease).state is LeaseState.FAILED
    assert child.poll() is None
    child.kill()
    child.wait()
    house.agent.clear_lease(admin(), lease.id)
    assert house.ledger.held() == ()


def test_another_users_process_is_not_adopted(house: House) -> None:
    """Only one's own process, by all four uids; an administrator any."""
    mine = os.getpid()
    other = user(os.getuid() + 1000, pid=1)
    order = order_of(cus=8, anchor=AnchorKind.PROCESS, pid=mine, holder=(HolderKind.PROCESS, str(mine)))
    with pytest.raises(NotAllowed, match="not yours"):
        house.agent.grant(other, order)


def test_a_release_comes_before_whoever_attaches_late(house: House, children) -> None:
    """Once a release has begun attach is fenced out."""
    caller = children.peer()
    lease = house.grant(admin(caller.pid), cus=8)
    house.release(lease)
    with pytest.raises(StaleLease):
        house.agent.attach(admin(caller.pid), lease.id)


def test_force_frees_without_proof_and_says_who(build, effect: ScriptedEffect) -> None:
    """An administrator's word frees the slice; the event names them and what was not proved."""
    house, lease, _ = quarantined(build, effect)
    assert house.agent.clear_lease(admin(), lease.id).slices[0].state is SliceState.QUARANTINED
    house.agent.clear_lease(admin(), lease.id, force=True)
    assert house.ledger.held() == ()
    event = house.ledger.events(lease=lease.id)[-1]
    assert (event.kind, event.uid) == ("cleared", 0)
    assert event.reason == "forced: memory is still charged"


def test_what_force_left_undone_is_tried_again(build, effect: ScriptedEffect) -> None:
    """When what was in the way has gone, the rest of the journal is undone, too."""
    house, lease, _ = quarantined(build, effect)
    house.agent.clear_lease(admin(), lease.id, force=True)
    assert house.ledger.unfinished() == {lease.id}
    effect.script.clear()
    house.releaser.retry(lease.id).result(20)
    assert house.ledger.unfinished() == frozenset()
    assert effect.world == set()


def test_no_force_frees_under_a_living_process(build, effect: ScriptedEffect) -> None:
    """An administrator, too, has to end it first."""
    house, lease, _ = quarantined(build, effect)
    effect.script = {"undo": [Pending("process 7 still runs", alive=True)] * 10_000}
    with pytest.raises(NotAllowed, match="process 7"):
        house.agent.clear_lease(admin(), lease.id, force=True)
    assert house.ledger.quarantined()


def test_what_is_in_the_way_is_kept_for_administrators(build, effect: ScriptedEffect) -> None:
    """The journal's entry that could not be undone says what was found; nobody else may read it."""
    house, lease, _ = quarantined(build, effect)
    (entry,) = [one for one in house.agent.journal(admin(), lease.id) if one.kind == SCRIPTED]
    found = entry.evidence["in_the_way"]
    assert {"render_nodes", "dma_bufs", "kfd", "vram_used_bytes"} <= found.keys()
    with pytest.raises(NotAllowed):
        house.agent.journal(user(), lease.id)


def test_a_process_that_cannot_be_looked_at_holds_up_no_quarantine(
    build, effect: ScriptedEffect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's file system may never answer who looks at what its programs have open."""
    never = threading.Event()
    monkeypatch.setattr("nodeagent.service.obstacles.LOOK_SECONDS", 0.1)
    monkeypatch.setattr("nodeagent.service.obstacles.users_of", lambda node: never.wait() and ())
    try:
        house, lease, _ = quarantined(build, effect)
        (entry,) = [one for one in house.agent.journal(admin(), lease.id) if one.kind == SCRIPTED]
        assert entry.evidence["in_the_way"] == {"unknown": "some process holds up who looks at it"}
    finally:
        never.set()
