"""Who may have a container in a lease that was not taken for it, and what that container is given."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from guest_world import GLIBC, guests, host, taken, within
from service_builders import GIB, House, admin, order_of, user

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.hook_files import HookFiles
from nodeagent.config import Docker
from nodeagent.domain.container import Container, Engine
from nodeagent.domain.errors import InLease, InvalidField, NotAllowed, OutsideFault, TooMany
from nodeagent.domain.guarantee import Compute, Guarantee, Memory, Queues, Requirement
from nodeagent.domain.lease import Lease, LeaseState
from nodeagent.domain.refusals import Code, Refusal
from nodeagent.domain.request import Request, SliceRequest
from nodeagent.service import hosting
from nodeagent.service.hosting import GuestOrder
from nodeagent.service.orders import Granted

pytestmark = pytest.mark.root
Build = Callable[..., House]
LEVEL_AT = 168 + 28  # of the first device in the limits: hook/format.h


@pytest.fixture
def house(build: Build, engine: FakeEngine, tree: CgroupTree, hook_files: HookFiles) -> House:
    """An agent beside one engine, whose leases have a hook."""
    return build(tree=tree, engines={Engine.DOCKER: engine}, hook=hook_files)


@pytest.fixture
def job_of_the_kernel() -> Callable[[House], Lease]:
    """A lease with memory=kernel on record, as on a kernel that holds it."""

    def make(house: House) -> Lease:
        job = taken(house)
        from sqlalchemy import text

        with house.ledger.write() as tx, tx._connection() as connection:
            told = '{"memory": "kernel", "compute": "mask", "visibility": "environment", "ipc": "shared"}'
            connection.execute(text("UPDATE leases SET guarantee = :told"), {"told": told})
            tx._touch(job.id)
        found = house.ledger.lease(job.id)
        assert found is not None
        return found

    return make


def test_a_process_in_a_lease_of_its_own_is_told_that_it_may_have_a_guest(
    house: House, job: Lease, inside: int
) -> None:
    """A lease beside the job's is refused, with the number that a client needs; outside it is granted."""
    order = order_of(container=Container(Engine.DOCKER), cus=8)
    with pytest.raises(InLease, match="lease 1 of slurm:42") as refused:
        house.agent.grant(user(1000, inside), order)
    assert refused.value.lease == job.id
    assert isinstance(house.agent.grant(user(1000), order), Granted)


def test_in_a_lease_there_are_no_cdi_devices_and_no_guests_of_others(
    house: House, job: Lease, inside: int
) -> None:
    """CDI's containers may be anywhere; and whoever came into another user's lease gets nothing of it."""
    with pytest.raises(NotAllowed, match="CDI") as refused:
        house.agent.grant(user(1000, inside), order_of(request=Request((SliceRequest(cus=8),), cdi=True)))
    assert not isinstance(refused.value, InLease)
    for caller in (user(1001, inside), admin(inside)):
        with pytest.raises(NotAllowed, match="another user's"):
            house.agent.grant(caller, order_of(container=Container(Engine.DOCKER), cus=8))
        with pytest.raises(NotAllowed):
            house.agent.host(caller, job.id, GuestOrder(GLIBC, Requirement()))


def test_a_guest_has_the_leases_devices_limits_and_cgroup(house: House, job: Lease, inside: int) -> None:
    """And no lease: nothing more is held, and the note, the limits and the ticket are its own."""
    before = house.ledger.held()
    hosted = host(house, job, inside)
    view = hosted.view
    assert house.ledger.held() == before and len(house.ledger.live()) == 1
    assert view.cgroup_parent == job.cgroup
    assert [one["inside"] for one in view.devices] == ["/dev/kfd", "/dev/dri/renderD128"]
    files = {one["target"]: Path(one["source"]) for one in view.mounts}
    usage = house.hook.usage_path(job.id)
    assert files["/run/gpulease/usage"] == usage  # so that both count together
    limits = files["/etc/gpulease/limits"].read_bytes()
    assert b"/run/gpulease/usage" in limits and str(usage).encode() not in limits
    assert files["/etc/ld.so.preload"].read_text() == "/usr/lib/gpulease/hook.so\n"
    assert f"lease={job.id}" in files["/etc/gpulease/lease"].read_text()
    assert "LD_PRELOAD" not in view.environment and "GPULEASE_HOOK" not in view.environment
    assert view.environment["HSA_CU_MASK"] == (job.environment or {})["HSA_CU_MASK"]
    assert struct.unpack_from("<I", limits, LEVEL_AT) == (8,)  # its hardware queues', at the normal priority
    assert (hosted.guarantee.memory, hosted.guarantee.queues) == (Memory.HOOK, Queues.HOOK)
    assert view.labels["gpulease.lease"] == str(job.id)


def test_the_same_request_has_the_same_guest(house: House, job: Lease, inside: int) -> None:
    """A client that did not hear the answer asks again, and leaves nothing behind."""
    first, again = (host(house, job, inside, request_id="x") for _ in range(2))
    assert (first.number, first.view.labels) == (again.number, again.view.labels)
    assert (first.fresh, again.fresh) == (True, False)
    assert len(guests(house, job)) == 1


def test_a_holder_sees_who_is_inside(house: House, engine: FakeEngine, job: Lease, inside: int) -> None:
    """Each guest with its engine, container and state; nobody else's, and none once they are over."""
    assert house.agent.guests(user(1000), job.id) == []
    hosted = host(house, job, inside)
    (starting,) = house.agent.guests(user(1000), job.id)
    assert (starting.number, starting.held.id, starting.state) == (hosted.number, None, "starting")
    container = engine.create(hosted.view.labels, status="running")
    house.dock.engines.look(Engine.DOCKER)
    house.look()
    (running,) = house.agent.guests(admin(), job.id)
    assert (running.held.engine, running.held.id, running.state) == ("docker", container, "running")
    with pytest.raises(NotAllowed):
        house.agent.guests(user(2000), job.id)
    house.agent.give_back_guest(user(1000), job.id, hosted.number)
    (ending,) = house.agent.guests(admin(), job.id)
    assert (ending.state, ending.ending) == ("ending", "given back by its holder")


def test_what_the_node_refuses_is_taken_back(
    house: House, job: Lease, inside: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease keeps no trace of a guest that could not be let in."""

    def full(*_: Any) -> None:
        raise OutsideFault("/run", "no space")

    monkeypatch.setattr(house.hook, "let_guests_in", full)
    with pytest.raises(OutsideFault):
        host(house, job, inside)
    assert guests(house, job) == [] and house.state(job.id) is LeaseState.ACTIVE
    assert house.dock.files.leases() == frozenset()


def test_what_an_image_cannot_load_is_not_stated(house: House, job: Lease, inside: int) -> None:
    """A static program has no hook: said, or refused where it is demanded."""
    hosted = host(house, job, inside, Container(Engine.DOCKER, "static"))
    assert hosted.guarantee == Guarantee(compute=Compute.MASK)
    assert "/etc/gpulease/limits" not in {one["target"] for one in hosted.view.mounts}
    order = GuestOrder(Container(Engine.DOCKER, "static"), Requirement(memory=Memory.HOOK))
    outcome = house.agent.host(user(1000, inside), job.id, order)
    assert isinstance(outcome, Refusal) and outcome.code is Code.GUARANTEE_NOT_MET


def test_the_leases_own_demand_holds_for_its_guests(house: House) -> None:
    """A lease that asked for the hook has no container without it."""
    job = taken(house, require=Requirement(memory=Memory.HOOK))
    with within(house, job) as pid:
        order = GuestOrder(Container(Engine.DOCKER, "static"), Requirement())
        assert isinstance(house.agent.host(user(1000, pid), job.id, order), Refusal)


def test_only_who_runs_in_the_lease_has_guests_there(house: House, job: Lease) -> None:
    """By the cgroup of who asks: a number, or a lease of the same user elsewhere, opens nothing."""
    with pytest.raises(NotAllowed, match="does not run in lease"):
        host(house, job, 1)
    other = taken(house, "43")
    with within(house, other) as pid, pytest.raises(NotAllowed, match="does not run in lease"):
        host(house, job, pid)


def test_a_containers_lease_has_no_guests(house: House) -> None:
    """What is in a container starts no others beside it."""
    lease = house.grant(user(1000), container=Container(Engine.DOCKER), cus=8, vram_bytes=GIB)
    with within(house, lease) as pid, pytest.raises(NotAllowed, match="container's"):
        host(house, lease, pid)


def test_a_lease_has_no_end_of_guests_and_not_for_ever_to_start_one(
    house: House, job: Lease, inside: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a caller may have made of files and watching is bounded."""
    monkeypatch.setattr(hosting, "MOST", 1)
    host(house, job, inside)
    with pytest.raises(TooMany):
        host(house, job, inside)
    with pytest.raises(InvalidField, match=r"anchor\.start_seconds"):
        monkeypatch.setattr(hosting, "MOST", 9)
        host(house, job, inside, replace(GLIBC, start_seconds=10**6))


def test_an_engine_that_cannot_reach_the_cgroup_has_no_guests_of_the_kernels(
    build: Build, tree: CgroupTree, job_of_the_kernel: Callable[[House], Lease]
) -> None:
    """A lease that the kernel holds is not weakened by a container that lies elsewhere."""
    house = build(tree=tree, engines={Engine.DOCKER: FakeEngine(version="1")})
    job = job_of_the_kernel(house)
    with within(house, job) as pid, pytest.raises(NotAllowed, match="cgroupfs"):
        host(house, job, pid)


def test_where_containers_are_turned_off_no_lease_has_guests(build: Build, tree: CgroupTree) -> None:
    """A refusal of the field, by the setting's name."""
    house = build(tree=tree, config={"docker": Docker(enabled=False)})
    job = taken(house)
    with within(house, job) as pid, pytest.raises(InvalidField, match=r"docker\.enabled"):
        host(house, job, pid)
