"""What is observed is told and holds nothing; what is bypassed is opened, and enforced again afterwards."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from service_builders import GIB, House, admin, check_sound, order_of, user
from service_world import TurnedClock
from slurm_world import Site

from nodeagent.config import Docker, Guarantee, Mode, Slurm
from nodeagent.domain.container import Container, Engine
from nodeagent.domain.device import DeviceState
from nodeagent.domain.guarantee import Compute, Memory, Requirement
from nodeagent.domain.lease import AnchorKind, HolderKind, Lease, LeaseState
from nodeagent.domain.mode import bypass_for
from nodeagent.domain.refusals import Refusal
from nodeagent.domain.request import Request, SliceRequest
from nodeagent.domain.slurm import Word
from nodeagent.service.slurm import OBSERVED as LET

BOOT = "0b5d6b0e-3b1c-4f5e-9d4a-111111111111"
ALL = dict.fromkeys(("slurm", "docker", "process", "client"), "observe")


def bypass(house: House, seconds: int = 600) -> None:
    """Put a bypass on record, as root's command does."""
    house.bypass.write(bypass_for(seconds, uid=0, reason="3 am", clock=house.clock))


def said(house: House, lease: Lease | None = None) -> list[Any]:
    """What the observed requests would have come to."""
    events = house.ledger.events(lease=lease.id) if lease else house.ledger.events()
    return [event.data["would"] for event in events if event.kind == "observed"]


@pytest.fixture(autouse=True)
def boot(clock: TurnedClock) -> None:
    clock.boot_id = BOOT


@pytest.fixture
def observing(build: Callable[..., House]) -> House:
    return build(config={"mode": Mode(**ALL)})


def test_an_observed_lease_holds_nothing_and_changes_nothing(observing: House) -> None:
    """No slice, no mask, no limit, no variable but its id; its guarantee says that nothing holds it."""
    lease = observing.grant(user(), cus=8, vram_bytes=GIB)
    assert (lease.state, lease.slices, lease.cgroup) == (LeaseState.ACTIVE, (), None)
    assert lease.environment == {"GPULEASE_ID": str(lease.id)}
    assert (lease.guarantee.memory, lease.guarantee.compute) == (Memory.ADVISORY, Compute.NONE)
    assert lease.observed
    assert observing.ledger.held() == ()
    assert [one.kind for one in observing.ledger.effects(lease.id)] == ["observed"]
    assert said(observing, lease) == ["granted"]
    assert observing.release(lease).state is LeaseState.RELEASED


def test_what_would_be_refused_is_told_and_let_through(observing: House) -> None:
    """Observed leases count among themselves: the third half of a device would not fit."""
    device = observing.agent.inventory().devices[0].key
    for _ in range(3):
        observing.grant(user(), cu_percent=50, device=(device,))
    assert said(observing) == ["granted", "granted", "CardInsufficientMemory"]
    told = [event for event in observing.ledger.events() if event.kind == "observed"][-1]
    assert told.data["blockers"] == [1, 2] and "would be refused" in told.reason
    counts = observing.agent.observed()
    assert counts == {("client", "granted"): 2, ("client", "CardInsufficientMemory"): 1}


@pytest.mark.parametrize(
    "request_", [{"require": Requirement(memory=Memory.KERNEL)}, {"slices": (SliceRequest(count=99),)}]
)
def test_no_demand_of_an_observed_request_is_refused(observing: House, request_: dict[str, Any]) -> None:
    """Neither a floor nor more devices than there are."""
    request = Request(**{"slices": (SliceRequest(cus=8),), **request_})
    lease = observing.grant(user(), request=request, wait=60)
    assert lease.state is LeaseState.ACTIVE
    assert said(observing, lease) != ["granted"]


def test_the_sites_floor_refuses_nothing_that_is_observed(build) -> None:
    """A site that is to demand kernel memory sees first who would be refused."""
    house = build(config={"mode": Mode(**ALL), "guarantee": Guarantee(memory="kernel")})
    assert house.grant(user(), cus=8).observed


def test_observed_leases_take_nothing_from_enforced_ones(build) -> None:
    """Invariant 1 is about what is held: an exclusive lease fits beside any number of observed ones."""
    house = build(config={"mode": Mode(client="observe")})
    device = house.agent.inventory().devices[0].key
    process = (HolderKind.PROCESS, str(os.getpid()))
    for _ in range(3):
        house.grant(user(), cu_percent=50, device=(device,))
    real = house.grant(user(), holder=process, device=(device,))
    assert not real.observed and len(real.slices) == 1
    late = house.grant(user(), cu_percent=50, device=(device,))
    assert late.observed and said(house, late) == ["ExclusiveDeviceAllocateConflict"]
    refused = house.agent.grant(user(), order_of(holder=process, cu_percent=50, device=(device,)))
    assert isinstance(refused, Refusal) and refused.blockers == (real.id,)
    check_sound(house.ledger.held(), house)


def test_a_program_of_an_observed_lease_stays_where_it_is(build, tree, children) -> None:
    """It is let in, moved nowhere, and the lease ends with who asked, killing nobody."""
    house = build(tree=tree, config={"mode": Mode(process="observe")})
    asker, program = children.sleeper(), children.sleeper()
    before = tree.cgroup_of(program.pid)
    lease = house.grant(
        user(pid=asker.pid), anchor=AnchorKind.CGROUP, holder=(HolderKind.PROCESS, str(asker.pid)), cus=8
    )
    assert house.agent.attach(user(pid=program.pid), lease.id).id == lease.id
    assert tree.cgroup_of(program.pid) == before
    house.look()
    assert house.state(lease.id) is LeaseState.ACTIVE
    asker.kill()
    asker.wait()
    house.look()
    house.settle()
    assert house.state(lease.id) is LeaseState.RELEASED
    assert program.poll() is None


def test_a_containers_lease_is_observed_without_its_engine(observing: House) -> None:
    """It ends with who asked, or by its time."""
    lease = observing.grant(
        admin(), holder=(HolderKind.DOCKER, "web"), container=Container(Engine.DOCKER), cus=8
    )
    assert lease.observed and lease.anchor.kind is AnchorKind.PROCESS
    assert observing.agent.container(admin(), lease, ticket=True) is None


def test_a_lease_as_a_device_is_never_only_observed(observing: House) -> None:
    """It is made of its slices: there is nothing to give to an engine else."""
    request = Request(slices=(SliceRequest(cus=8),), cdi=True)
    outcome = observing.agent.grant(admin(), order_of(request=request))
    assert isinstance(outcome, Refusal) or not outcome.lease.observed


def test_the_limits_of_one_user_hold_while_observed(build) -> None:
    """They keep the agent from being flooded, in every mode."""
    from nodeagent.service.quotas import QuotaLimits

    house = build(config={"mode": Mode(**ALL)}, limits=QuotaLimits(2, 0, 1e9))
    for _ in range(2):
        house.grant(user(), cus=8)
    assert isinstance(house.agent.grant(user(), order_of(cus=8)), Refusal)


def test_an_observed_lease_is_found_by_its_request_and_after_a_restart(build) -> None:
    """The same request gives the same lease, also one that a crash cut short; then it counts as before."""
    house = build(config={"mode": Mode(**ALL)})
    first = house.grant(user(), cu_percent=80, request_id="a")
    house.die()
    house = build(config={"mode": Mode(**ALL)})
    assert house.grant(user(), cu_percent=80, request_id="a").id == first.id
    device = {
        event.data["slices"][0]["device"] for event in house.ledger.events() if event.kind == "observed"
    }
    assert house.grant(user(), cu_percent=80, device=tuple(device)).observed
    assert said(house) == ["granted", "CardInsufficientMemory"]


def test_nothing_is_closed_while_any_kind_is_observed(build) -> None:
    """What is closed outside leases would hit holders that have none."""
    assert build(config={"mode": Mode(docker="observe")}).enforcement.opened()


def test_foreign_containers_live_while_docker_is_observed(build) -> None:
    """Whatever docker.on_foreign says."""
    from types import SimpleNamespace

    from nodeagent.config import Config
    from nodeagent.wiring.enforcement import foreign_stop

    house = build(config={"mode": Mode(docker="observe")})
    dock = SimpleNamespace(foreign=lambda ledger: SimpleNamespace(stop=lambda pid: "stopped"))
    config = Config(docker=Docker(on_foreign="stop"))
    assert foreign_stop(Config(), dock, house.ledger, house.enforcement) is None
    assert foreign_stop(config, dock, house.ledger, house.enforcement)(1) is None


# -- Slurm ------------------------------------------------------------------------------------------------


@pytest.fixture
def site(build, tmp_path: Path) -> Site:
    """Slurm's GPUs, whose jobs are only observed."""
    config = {"mode": Mode(slurm="observe"), "slurm": Slurm(spool=tmp_path / "state/spool")}
    return Site(build(config=config))


def test_an_observed_job_starts_as_if_there_were_no_agent(site: Site) -> None:
    """Its prolog hears "none", its lease ends with its epilog."""
    assert site.prolog().word is Word.NONE
    (lease,) = site.leases()
    assert lease.observed and lease.holder.uid == 1000
    assert site.prolog().word is Word.NONE and len(site.leases()) == 1
    assert site.epilog().word in (Word.RELEASED, Word.NONE)
    assert site.leases()[-1].state is LeaseState.RELEASED


def test_no_fault_of_the_node_keeps_an_observed_job(site: Site) -> None:
    """A gres.conf that does not fit, and a ledger that takes nothing, are told and drain no node."""
    (site.house.root / "etc/slurm/gres.conf").unlink()
    assert site.prolog().word is Word.NONE
    assert said(site.house) == ["fault"]
    site.house.ledger._trouble = "full"
    assert site.prolog(job=43).word is Word.NONE


def test_a_task_of_an_observed_job_starts_as_it_is(site: Site, stepds) -> None:
    """Also one whose job began before there was an agent."""
    caller = stepds.task(1000)
    assert site.house.agent.slurm.task(caller, b"SLURM_JOB_ID=42\0") == LET
    site.prolog()
    assert site.house.agent.slurm.task(caller, b"SLURM_JOB_ID=42\0") == LET


# -- bypass -----------------------------------------------------------------------------------------------


def test_a_bypass_observes_every_kind_until_it_ends(house: House, clock: TurnedClock) -> None:
    """It needs no restart, is told as it begins and ends, and stands in the node's view."""
    before = house.grant(user(), cus=8)
    assert house.agent.node().bypass is None
    bypass(house, 600)
    assert house.agent.node().bypass.seen is False
    house.look()
    view = house.agent.node().bypass
    assert view.seen and view.bypass.reason == "3 am"
    assert house.grant(user(), cus=8).observed
    assert house.ledger.held() == before.slices
    clock.turn(601)
    house.look()
    assert not house.grant(user(), cus=8).observed
    assert [event.kind for event in house.ledger.events() if "bypass" in event.kind] == [
        "bypass_on",
        "bypass_off",
    ]


def test_those_who_wait_begin_when_a_bypass_does(house: House) -> None:
    """With nothing, as one that comes then; what was planned for them is not done."""
    device = house.agent.inventory().devices[0].key
    house.grant(user(), device=(device,))
    waiting = house.grant(user(), device=(device,), wait=600)
    assert waiting.state is LeaseState.QUEUED
    bypass(house)
    house.look()
    lease = house.ledger.lease(waiting.id)
    assert lease is not None and lease.state is LeaseState.ACTIVE and lease.observed
    assert said(house, lease) == ["ExclusiveDeviceAllocateConflict"]
    check_sound(house.ledger.held(), house)


def test_nobody_is_ended_while_bypassed(build, tree, children, clock: TurnedClock) -> None:
    """Neither by time, nor in a lease that its holder gives back; afterwards the end takes its course."""
    house = build(tree=tree, timeout=20)
    timed, given_back = (house.grant(admin(), cus=8, ttl=60) for _ in range(2))
    programs = [children.sleeper(), children.sleeper()]
    for lease, program in zip((timed, given_back), programs, strict=True):
        house.enter(lease, program.pid)
    bypass(house, 600)
    house.look()
    clock.turn(120)
    house.reconciler.run_once()
    assert house.state(timed.id) is LeaseState.ACTIVE
    assert house.agent.release(admin(), given_back.id, 0.3).state is LeaseState.RELEASING
    assert [program.poll() for program in programs] == [None, None]
    clock.turn(600)
    house.look()
    for program in programs:
        program.wait()
    house.settle()
    assert {house.state(one.id) for one in (timed, given_back)} == {LeaseState.RELEASED}


def test_an_empty_lease_ends_while_bypassed(build, tree, children) -> None:
    """Whose programs are gone waits for nobody."""
    house = build(tree=tree)
    lease = house.grant(admin(), cus=8)
    bypass(house)
    house.look()
    assert house.release(lease).state is LeaseState.RELEASED


def test_a_bypass_that_is_not_believed_is_none(house: House) -> None:
    """The node's view says why."""
    bypass(house)
    house.bypass.path.chmod(0o666)
    assert not house.grant(user(), cus=8).observed
    assert "root's alone" in (house.agent.node().bypass_trouble or "")


def test_a_bypass_of_another_boot_is_none(house: House, clock: TurnedClock) -> None:
    """A file system that outlived the reboot does not prolong it."""
    bypass(house)
    clock.boot_id = BOOT.replace("1", "2")
    assert not house.enforcement.bypassed()


# -- drain of the node ------------------------------------------------------------------------------------


def test_a_drained_node_grants_nothing_until_undrained(house: House) -> None:
    """Also on a device that has a drain of its own; undraining the node ends them all."""
    first, second = house.agent.inventory().devices
    house.agent.drain(admin(), first.key, reason="fan")
    view = house.agent.drain_node(admin(), reason="power", until_seconds=60)
    assert {drain.device: drain.reason for drain in view.drains} == {first.key: "fan", "node": "power"}
    assert {device.reason for device in house.agent.inventory().devices} == {"fan", "power"}
    assert isinstance(house.agent.grant(admin(), order_of(cus=8)), Refusal)
    assert house.agent.undrain_node(admin()).drains == ()
    assert house.agent.device(second.key).state is DeviceState.HEALTHY
    assert house.grant(user(), cus=8).state is LeaseState.ACTIVE


def test_users_do_not_drain(house: House) -> None:
    """Nor undrain."""
    from nodeagent.domain.errors import NotAllowed

    for act in (house.agent.drain_node, house.agent.undrain_node):
        with pytest.raises(NotAllowed):
            act(user())
