"""Granting: durable before visible, all or nothing, and the same request the same lease."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from service_builders import House, admin, order_of, outside, picture, user
from service_world import SCRIPTED, ScriptedEffect, TurnedClock

from nodeagent.adapters.supervisor import Supervisor
from nodeagent.config import Limits
from nodeagent.domain.errors import InvalidField, KeyReused, LedgerUnavailable, NotAllowed, OutsideFault
from nodeagent.domain.guarantee import Compute, Ipc, Memory, Requirement, Visibility
from nodeagent.domain.lease import AnchorKind, HolderKind, LeaseState, SliceState
from nodeagent.domain.records import EffectState
from nodeagent.domain.refusals import Code, Refusal
from nodeagent.domain.request import Priority, Request, SliceRequest
from nodeagent.service.hooked import HookMeans
from nodeagent.service.means import Setting, why_not
from nodeagent.service.orders import Granted
from nodeagent.service.private_ipc import PrivateIpcMeans
from nodeagent.service.rights import must_be_allowed


def test_a_lease_is_active_only_once_its_effects_are_verified(build, effect: ScriptedEffect) -> None:
    """While an effect is applied the slice is held and the lease is preparing, and nobody sees it active."""
    seen = []
    effect.on_apply = lambda lease: seen.append((house.state(lease), len(house.ledger.held())))
    house = build(effect=effect)
    lease = house.grant(cus=8)
    assert seen == [(LeaseState.PREPARING, 1)]
    assert lease.state is LeaseState.ACTIVE
    (record,) = [record for record in house.ledger.effects(lease.id) if record.kind == SCRIPTED]
    assert (record.state, record.evidence) == (EffectState.VERIFIED, {"made": True, "seen": True})


@pytest.mark.parametrize("part", ["apply", "verify"])
@pytest.mark.parametrize("fault", [outside(), PermissionError(1, "no", "/sys/fs/cgroup/x")])
def test_a_fault_in_an_effect_leaves_nothing_held(build, effect: ScriptedEffect, part, fault) -> None:
    """The caller gets OutsideFault with the path, the journal is walked back and the slices are free."""
    effect.script = {part: [fault]}
    house = build(effect=effect)
    with pytest.raises(OutsideFault, match="/sys/fs/cgroup/x"):
        house.grant(cus=8)
    house.settle()
    (lease,) = house.ledger.leases()
    assert lease.state is LeaseState.RELEASED
    assert "not prepared" in (lease.reason or "")
    assert house.ledger.held() == ()
    assert effect.world == set()
    assert house.grant(cus=8).state is LeaseState.ACTIVE


def test_a_repeated_request_gets_the_fault_that_the_first_one_got(build, effect: ScriptedEffect) -> None:
    """Never a lease that was not prepared; another request id asks afresh."""
    effect.script = {"verify": [outside()]}
    house = build(effect=effect)
    for _ in range(2):
        with pytest.raises(OutsideFault, match="made to fail"):
            house.grant(cus=8, request_id="a")
        house.settle()
    assert effect.calls["apply"] == 1
    assert house.grant(cus=8, request_id="b").state is LeaseState.ACTIVE


def test_a_repeated_request_of_an_ended_lease_gets_that_lease(house: House) -> None:
    """Its state says that it ended; nothing new is taken."""
    lease = house.grant(cus=8, request_id="a")
    house.release(lease)
    assert house.grant(cus=8, request_id="a") == house.ledger.lease(lease.id)
    assert house.ledger.held() == ()


def test_an_effect_that_the_agent_has_no_means_for_is_a_fault(build, effect: ScriptedEffect) -> None:
    """A journal written with more rights than this start has gives OutsideFault, never a crash."""
    house = build(effect=effect)
    house.journal._effects = {}
    with pytest.raises(OutsideFault, match="started without"):
        house.grant(cus=8)
    house.settle()
    assert [held.state for held in house.ledger.held()] == [SliceState.QUARANTINED]


def test_a_refusal_leaves_the_ledger_as_it_was(house: House) -> None:
    """A request that does not fit changes no lease and no slice, and names those that block."""
    holder = house.grant(request=Request((SliceRequest(count=2),)))
    before = picture(house.ledger)
    refusal = house.agent.grant(user(), order_of(cus=8))
    assert isinstance(refusal, Refusal)
    assert refusal.blockers == (holder.id,)
    assert picture(house.ledger) == before


def test_one_device_too_few_takes_none(house: House) -> None:
    """A request for several slices gets all of them or nothing."""
    house.grant(cu_percent=75)
    before = picture(house.ledger)
    whole = Request((SliceRequest(cu_percent=75), SliceRequest(cu_percent=75)))
    assert isinstance(house.agent.grant(admin(), order_of(request=whole)), Refusal)
    assert picture(house.ledger) == before


@pytest.mark.parametrize(
    "floor",
    [Requirement(memory=Memory.KERNEL), Requirement(compute=Compute.EXCLUSIVE)],
)
def test_a_floor_that_the_node_cannot_hold_is_refused(house: House, floor: Requirement) -> None:
    """A demanded guarantee is met as verified, or the request is refused with GuaranteeNotMet."""
    request = Request((SliceRequest(cus=8),), require=floor)
    refusal = house.agent.grant(user(), order_of(request=request))
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.GUARANTEE_NOT_MET
    assert house.ledger.held() == ()


@pytest.mark.parametrize(
    ("floor", "tier"),
    [
        (Requirement(memory=Memory.KERNEL), "dmem: needs a cgroup2 mount"),
        (Requirement(memory=Memory.HOOK), "hook: "),
        (Requirement(visibility=Visibility.ACL), "gate: "),
    ],
)
def test_who_is_refused_a_floor_is_told_why_the_node_lacks_it(
    house: House, floor: Requirement, tier: str
) -> None:
    """The reason of each tier that would hold it, and of no other, so that an administrator can mend it."""
    refusal = house.agent.grant(user(), order_of(request=Request((SliceRequest(cus=8),), require=floor)))
    assert tier in refusal.why
    assert "vram: " not in refusal.why
    assert ("dmem: " in refusal.why) == (floor.memory is not None)


def test_who_adopts_is_told_that_nothing_holds_what_runs_already(house: House, hook_files) -> None:
    """A tier that the node has is no help to such a lease, and says so."""
    setting = Setting(1000, Requirement(), None, True, (), house.survey.found())
    assert why_not(HookMeans(hook_files), setting) == "hook: not of what runs already"


def test_a_refused_demand_says_what_the_node_lacks(house: House) -> None:
    """Where private IPC cannot be had, the refusal has the reason, and what to do."""
    house.planner._means = (*house.planner._means, PrivateIpcMeans(Supervisor(Path("/no/supervisor"))))
    request = Request((SliceRequest(cus=8),), require=Requirement(ipc=Ipc.PRIVATE))
    refusal = house.agent.grant(user(), order_of(request=request))
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.GUARANTEE_NOT_MET
    assert "ipc=private" in refusal.why and "/no/supervisor" in refusal.why
    assert "--require" in refusal.next_act


def test_the_sites_floor_is_demanded_of_every_request(house: House) -> None:
    """What the site demands needs no --require, and is refused as clearly."""
    house.planner._floor = Requirement(memory=Memory.HOOK)
    refusal = house.agent.grant(user(), order_of(cus=8))
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.GUARANTEE_NOT_MET
    assert "memory" in refusal.why


def test_a_floor_that_the_node_holds_is_granted(house: House) -> None:
    """A whole device is exclusive, so that floor is met and stated on the lease."""
    request = Request((SliceRequest(),), require=Requirement(compute=Compute.EXCLUSIVE))
    lease = house.grant(user(), request=request)
    assert lease.guarantee.compute is Compute.EXCLUSIVE
    assert lease.guarantee.memory is Memory.ADVISORY


def test_the_same_request_id_gives_the_same_lease(house: House) -> None:
    """A repeated request takes nothing more, and is told not to be fresh."""
    first = house.agent.grant(user(), order_of(cus=8, request_id="a"))
    again = house.agent.grant(user(), order_of(cus=8, request_id="a"))
    assert isinstance(first, Granted) and isinstance(again, Granted)
    assert (first.fresh, again.fresh) == (True, False)
    assert again.lease == first.lease
    assert len(house.ledger.held()) == 1


def test_a_request_id_with_another_body_is_an_error(house: House) -> None:
    """KeyReused, and nothing is granted."""
    house.grant(user(), cus=8, request_id="a")
    with pytest.raises(KeyReused, match="another body"):
        house.grant(user(), cus=16, request_id="a", digest="other")
    assert len(house.ledger.held()) == 1


def test_request_ids_are_each_users_own(house: House) -> None:
    """Two users with the same request id have two leases: threat 10."""
    one = house.grant(user(1000), cus=8, request_id="a")
    other = house.grant(user(1001), cus=8, request_id="a", digest="other")
    assert one.id != other.id


def test_a_request_id_is_known_for_a_day(house: House, clock: TurnedClock) -> None:
    """After 24 hours a request id is a new request."""
    first = house.grant(user(), cus=8, request_id="a", anchor=AnchorKind.TTL)
    clock.turn(24 * 3600 + 1)
    assert house.grant(user(), cus=8, request_id="a").id > first.id


def test_many_threads_with_one_request_id_get_one_lease(build, effect: ScriptedEffect) -> None:
    """Twenty at once: one lease, one fresh answer, and nobody is answered before its limits are in place."""
    house = build(effect=effect)
    with ThreadPoolExecutor(20) as pool:
        answers = list(
            pool.map(lambda _: house.agent.grant(user(), order_of(cus=8, request_id="a")), range(20))
        )
    assert len({answer.lease.id for answer in answers}) == 1
    assert [answer.fresh for answer in answers].count(True) == 1
    assert {answer.lease.state for answer in answers} == {LeaseState.ACTIVE}
    assert effect.calls["apply"] == 1
    assert len(house.ledger.held()) == 1


def test_grants_of_many_threads_take_nothing_twice(house: House) -> None:
    """Demand of twice the node from many threads: what is granted is disjoint and fills it exactly."""
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: house.agent.grant(user(), order_of(cus=16)), range(16)))
    granted = [answer.lease for answer in answers if isinstance(answer, Granted)]
    taken = [(held.placed.device, cu) for lease in granted for held in lease.slices for cu in held.placed.cus]
    assert len(taken) == len(set(taken)) == 128
    assert len(granted) == 8


def test_a_sick_ledger_grants_nothing(house: House) -> None:
    """With the ledger closed the answer is LedgerUnavailable with the reason, and the node says so."""
    house.ledger.close()
    with pytest.raises(LedgerUnavailable, match="takes no grants"):
        house.grant(cus=8)


def test_slurm_docker_and_unproved_holders_come_from_administrators(house: House) -> None:
    """U cannot post a job's name first, nor hold without a proof of life: threat 10."""
    for order, why in (
        (order_of(cus=8, holder=(HolderKind.SLURM, "7")), "holder.kind slurm: only an administrator"),
        (order_of(cus=8, holder=(HolderKind.DOCKER, "c")), "holder.kind docker: only an administrator"),
        (order_of(cus=8, anchor=AnchorKind.EXTERNAL), "anchor.kind external: only an administrator"),
        (order_of(cus=8, holder=(HolderKind.PROCESS, "1")), "holder.id: a process holds only for itself"),
    ):
        with pytest.raises(NotAllowed, match=why):
            house.agent.grant(user(), order)
    assert house.grant(admin(), cus=8, holder=(HolderKind.SLURM, "7"), anchor=AnchorKind.EXTERNAL)


def test_a_process_holds_for_itself_or_for_one_that_it_adopts(house: House) -> None:
    """Also for an administrator: a holder that is another process than the anchor would outlive its proof."""
    with pytest.raises(NotAllowed, match="a process holds only for itself"):
        house.agent.grant(admin(), order_of(cus=8, holder=(HolderKind.PROCESS, "1")))
    assert house.ledger.leases() == ()


def test_nobody_is_told_of_a_sick_ledger_for_what_they_may_not_ask(house: House) -> None:
    """A forbidden order is NotAllowed at once, so that no client waits for a ledger to no end."""
    house.ledger.close()
    with pytest.raises(NotAllowed):
        house.agent.grant(user(), order_of(cus=8, holder=(HolderKind.SLURM, "7")))


def test_a_containers_root_is_granted_nothing(house: House) -> None:
    """uid 0 that is no administrator is another namespace's root."""
    with pytest.raises(NotAllowed, match="another namespace"):
        house.agent.grant(user(0), order_of(cus=8))


def test_a_ttl_beyond_the_sites_bound_names_its_field(house: House) -> None:
    """InvalidField on ttl_seconds; nothing is booked."""
    with pytest.raises(InvalidField, match="ttl_seconds"):
        house.grant(user(), cus=8, ttl=86_401)
    assert house.ledger.leases() == ()


def test_the_environment_is_the_slices(house: House) -> None:
    """What the lease hands to its program speaks of its own device, CUs and bytes."""
    lease = house.grant(user(), cus=16)
    (held,) = lease.slices
    environment = lease.environment or {}
    assert environment["GPULEASE_ID"] == str(lease.id)
    assert environment["GPULEASE_VRAM_BYTES"] == str(held.placed.vram_bytes)
    assert environment["HSA_CU_MASK"] is not None
    assert environment["CUDA_VISIBLE_DEVICES"] is None


def test_a_draining_device_grants_nothing_and_its_leases_go_on(house: House) -> None:
    """Drain stops new leases on the device only; a lease there may renew."""
    device = house.agent.inventory().devices[0].key
    lease = house.grant(user(), cus=8, device=(device,))
    house.agent.drain(admin(), device, reason="maintenance")
    refusal = house.agent.grant(user(), order_of(cus=8, device=(device,)))
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.CARD_CORDONED
    assert house.agent.renew(user(), lease.id).state is LeaseState.ACTIVE
    house.agent.undrain(admin(), device)
    assert house.grant(user(), cus=8, device=(device,))
    told = [(event.kind, event.reason) for event in house.ledger.events() if event.kind.endswith("drained")]
    assert told == [("drained", "maintenance"), ("undrained", None)]


def test_only_an_administrator_goes_before_all_others(house: House) -> None:
    """Priority high is an administrator's to ask for; another's request says so."""
    request = Request(slices=(SliceRequest(cus=8),), priority=Priority.HIGH)
    order = order_of(request=request)
    with pytest.raises(NotAllowed, match="priority high"):
        house.agent.grant(user(), order)
    assert isinstance(house.agent.grant(admin(), order), Granted)


@pytest.mark.parametrize("most", Priority)
def test_users_may_ask_for_queues_up_to_the_sites_priority(most: Priority) -> None:
    """Above it is an administrator's to ask for; another's request says what is allowed."""
    for asked in Priority:
        order = order_of(request=Request(slices=(SliceRequest(cus=8),), queue_priority=asked))
        must_be_allowed(admin(), order, most)
        if asked.above(most):
            with pytest.raises(NotAllowed, match=f"queue_priority {asked}: .* {most} at most"):
                must_be_allowed(user(), order, most)
        else:
            must_be_allowed(user(), order, most)


def test_high_queues_are_an_administrators_unless_the_site_says_otherwise(build) -> None:
    """The agent asks for rights with what is set."""
    order = order_of(request=Request(slices=(SliceRequest(cus=8),), queue_priority=Priority.HIGH))
    strict, open_ = build(), build(config={"limits": Limits(queue_priority="high")})
    with pytest.raises(NotAllowed, match="queue_priority high"):
        strict.agent.grant(user(), order)
    assert isinstance(strict.agent.grant(admin(), order), Granted)
    assert isinstance(open_.agent.grant(user(), order), Granted)
