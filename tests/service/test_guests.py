"""Guests: a container that is started from within a lease shares that lease, and ends with it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from service_builders import GIB, House, admin, order_of, until, user
from service_world import TurnedClock

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.hook_files import HookFiles
from nodeagent.config import Docker
from nodeagent.domain.container import NOTE, Container, Engine
from nodeagent.domain.errors import InLease, InvalidField, NotAllowed, OutsideFault, TooMany, UnknownThing
from nodeagent.domain.guarantee import Compute, Guarantee, Memory, Requirement
from nodeagent.domain.lease import AnchorKind, HolderKind, Lease, LeaseState
from nodeagent.domain.refusals import Code, Refusal
from nodeagent.domain.request import Request, SliceRequest
from nodeagent.service import hosting
from nodeagent.service.guest_records import Guest
from nodeagent.service.hosting import GuestOrder, Hosted
from nodeagent.service.orders import Behalf, Granted

pytestmark = pytest.mark.root
Build = Callable[..., House]
GLIBC = Container(Engine.DOCKER, "glibc-2.36")


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def house(build: Build, engine: FakeEngine, tree: CgroupTree, hook_files: HookFiles) -> House:
    """An agent beside one engine, whose leases have a hook."""
    return build(tree=tree, engines={Engine.DOCKER: engine}, hook=hook_files)


@contextmanager
def within(house: House, lease: Lease) -> Iterator[int]:
    """A process in the lease."""
    inside = subprocess.Popen(["sleep", "60"])
    try:
        house.enter(lease, inside.pid)
        yield inside.pid
    finally:
        inside.kill()
        inside.wait()


@pytest.fixture
def job(house: House) -> Lease:
    """A job of uid 1000, on a node where its lease has a cgroup of the agent's."""
    return taken(house)


def taken(house: House, job: str = "42", require: Requirement | None = None) -> Lease:
    request = Request((SliceRequest(cus=8, vram_bytes=GIB),), require=require or Requirement())
    order = order_of(holder=(HolderKind.SLURM, job), anchor=AnchorKind.EXTERNAL, request=request)
    outcome = house.agent.grant(admin(), replace(order, behalf=Behalf(1000, 1000)))
    assert isinstance(outcome, Granted)
    return outcome.lease


@pytest.fixture
def inside(house: House, job: Lease) -> Iterator[int]:
    """A process of that job."""
    with within(house, job) as pid:
        yield pid


def host(house: House, lease: Lease, pid: int, held: Container = GLIBC, **more: Any) -> Hosted:
    order = GuestOrder(held, more.pop("require", Requirement()), **more)
    outcome = house.agent.host(user(1000, pid), lease.id, order)
    assert isinstance(outcome, Hosted), outcome
    return outcome


def guests(house: House, lease: Lease) -> list[Guest]:
    return house.containers.guests.of([lease.id])


def look(house: House) -> None:
    house.dock.engines.look(Engine.DOCKER)
    house.look()


def started(house: House, engine: FakeEngine, lease: Lease, pid: int, **more: Any) -> tuple[Hosted, str]:
    """A guest whose container runs."""
    hosted = host(house, lease, pid, **more)
    container = engine.create(hosted.view.labels, status="running")
    look(house)
    return hosted, container


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
    assert hosted.guarantee.memory is Memory.HOOK
    assert view.labels["gpulease.lease"] == str(job.id)


def test_each_guest_has_a_ticket_and_a_note_of_its_own(
    house: House, engine: FakeEngine, job: Lease, inside: int
) -> None:
    """Several containers are in one lease; each is bound to its own."""
    (first, one), (second, two) = (started(house, engine, job, inside) for _ in range(2))
    assert first.view.labels != second.view.labels
    assert {guest.number: guest.held.id for guest in guests(house, job)} == {
        first.number: one,
        second.number: two,
    }
    notes = {house.dock.files.note(job.id, one.number) for one in (first, second)}
    assert len(notes) == 2 and all(note.exists() for note in notes)
    assert [one.id for one in house.agent.leases(admin(), holder=(HolderKind.DOCKER, one))] == [job.id]


def test_the_same_request_has_the_same_guest(house: House, job: Lease, inside: int) -> None:
    """A client that did not hear the answer asks again, and leaves nothing behind."""
    first, again = (host(house, job, inside, request_id="x") for _ in range(2))
    assert (first.number, first.view.labels) == (again.number, again.view.labels)
    assert (first.fresh, again.fresh) == (True, False)
    assert len(guests(house, job)) == 1


@pytest.mark.parametrize("status", ["exited", "dead", None])
def test_a_guest_ends_with_its_container_and_the_lease_goes_on(
    house: House, engine: FakeEngine, job: Lease, inside: int, status: str | None
) -> None:
    """Its files go, so that it is not started again; what the lease has stays."""
    hosted, container = started(house, engine, job, inside)
    if status is None:
        engine.remove(container)
    else:
        engine.be(container, status)
    look(house)
    assert guests(house, job) == [] and house.state(job.id) is LeaseState.ACTIVE
    assert not house.dock.files.note(job.id, hosted.number).exists()
    assert list((house.dock.files.note(1).parents[2] / "tickets").glob("*/*")) == []
    assert house.hook.usage_path(job.id).exists()
    assert house.kinds(job)[-3:] == ["guest", "bound", "guest_ended"]


def test_the_end_of_the_lease_ends_its_guests(house: House, engine: FakeEngine, job: Lease) -> None:
    """As the epilog does, whatever became of the client: by the engine, before the slice is free."""
    with within(house, job) as pid:
        (_, one), (_, two) = (started(house, engine, job, pid) for _ in range(2))
    house.release(job)
    assert house.state(job.id) is LeaseState.RELEASED
    assert sorted(engine.calls) == [("stop", one), ("stop", two)]
    assert house.dock.files.leases() == frozenset()


def test_a_container_that_does_not_end_keeps_the_slice(build: Build, tree: CgroupTree) -> None:
    """It is killed, and where that cannot be seen nothing is freed."""
    engine = FakeEngine(stubborn=True)
    house = build(tree=tree, engines={Engine.DOCKER: engine}, timeout=10)
    job = taken(house)
    with within(house, job) as pid:
        _, container = started(house, engine, job, pid)
    house.release(job)
    assert engine.calls == [("stop", container), ("kill", container)]


def test_a_guest_that_is_given_back_leaves_the_lease(
    house: House, engine: FakeEngine, job: Lease, inside: int
) -> None:
    """A wrapper whose engine failed takes back its own, and nobody else's."""
    hosted = host(house, job, inside)
    other, _ = started(house, engine, job, inside)
    with pytest.raises(NotAllowed):
        house.agent.give_back_guest(user(1001), job.id, hosted.number)
    house.agent.give_back_guest(user(1000), job.id, hosted.number)
    assert [one.number for one in guests(house, job)] == [other.number]
    assert house.state(job.id) is LeaseState.ACTIVE and engine.calls == []
    with pytest.raises(UnknownThing):
        house.agent.give_back_guest(user(1000), job.id, hosted.number)


def test_a_guest_that_never_starts_is_cleaned(
    house: House, engine: FakeEngine, job: Lease, inside: int, clock: TurnedClock
) -> None:
    """Made or not, by its own start deadline: a created container is not started after that."""
    host(house, job, inside, replace(GLIBC, start_seconds=300))
    made = host(house, job, inside, replace(GLIBC, start_seconds=300))
    engine.create(made.view.labels)
    clock.turn(200)
    look(house)
    assert len(guests(house, job)) == 2
    clock.turn(101)
    look(house)
    assert guests(house, job) == [] and house.state(job.id) is LeaseState.ACTIVE


def test_a_guest_whose_asker_ended_waits_for_the_engines_word(
    house: House, engine: FakeEngine, job: Lease
) -> None:
    """It may have started the container a moment ago; where there is none it is over at once."""
    with within(house, job) as pid:
        first, second = (host(house, job, pid) for _ in range(2))
    engine.down = True
    house.look()
    assert len(guests(house, job)) == 2
    engine.down = False
    engine.create(first.view.labels, status="running")
    house.clock.turn(3)
    look(house)
    assert [one.number for one in guests(house, job)] == [first.number]
    assert guests(house, job)[0].armed and second.number != first.number


def test_a_guessed_or_copied_ticket_binds_nothing(
    house: House, engine: FakeEngine, job: Lease, inside: int
) -> None:
    """A label is a hint: the first container keeps it, and a lease's number is no ticket."""
    hosted = host(house, job, inside)
    engine.create({"gpulease.lease": str(job.id), "gpulease.ticket": "0" * 32}, status="running")
    look(house)
    assert guests(house, job)[0].held.id is None
    container = engine.create(hosted.view.labels, status="running")
    engine.create(hosted.view.labels, status="running")
    look(house)
    assert guests(house, job)[0].held.id == container


def test_an_engine_that_is_down_ends_no_guest(
    house: House, engine: FakeEngine, job: Lease, inside: int
) -> None:
    """Its container counts as there until it says otherwise."""
    started(house, engine, job, inside)
    engine.down = True
    look(house)
    look(house)
    assert len(guests(house, job)) == 1


def test_guests_outlive_the_agent(
    house: House, build: Build, engine: FakeEngine, tree: CgroupTree, job: Lease, inside: int
) -> None:
    """What is started meanwhile is bound, what ended is over, what was half let in is taken back."""
    _, gone = started(house, engine, job, inside)
    waiting = host(house, job, inside)
    cut = guests(house, job)[0].entry.arguments
    with house.ledger.write() as tx:
        tx.plan_effect(job.id, "guest", {**cut, "guest": 77})
    house.die()
    engine.remove(gone)
    container = engine.create(waiting.view.labels, status="running")
    again = build(tree=tree, engines={Engine.DOCKER: engine}, hook=house.hook)
    look(again)
    assert [(one.number, one.held.id) for one in guests(again, job)] == [(waiting.number, container)]


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


def test_a_guest_is_over_when_its_own_processes_are_gone(build: Build, tree: CgroupTree) -> None:
    """Those with its own note among their mounts, wherever they are; another's do not keep it."""
    engine = FakeEngine(version="1")
    house = build(tree=tree, engines={Engine.DOCKER: engine})
    job = taken(house)
    with within(house, job) as pid:
        first, second = (host(house, job, pid) for _ in range(2))
        assert first.view.cgroup_parent is None
        with noted(house.dock.files.note(job.id, second.number)):
            house.agent.give_back_guest(user(1000), job.id, first.number)
            house.agent.give_back_guest(user(1000), job.id, second.number)
            assert [one.number for one in guests(house, job)] == [second.number]
        until(lambda: look(house) or not guests(house, job))


@contextmanager
def noted(note: Path) -> Iterator[None]:
    """A process that has *note* mounted, as in a container."""
    place = f"mount -t tmpfs none /etc && mkdir {Path(NOTE).parent} && touch {NOTE}"
    script = f"{place} && mount --bind {note} {NOTE} && echo ready && exec sleep 60"
    with subprocess.Popen(["unshare", "--mount", "sh", "-ec", script], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        yield
        child.kill()


def test_an_engine_that_cannot_reach_the_cgroup_has_no_guests_of_the_kernels(
    build: Build, tree: CgroupTree, job_of_the_kernel: Callable[[House], Lease]
) -> None:
    """A lease that the kernel holds is not weakened by a container that lies elsewhere."""
    house = build(tree=tree, engines={Engine.DOCKER: FakeEngine(version="1")})
    job = job_of_the_kernel(house)
    with within(house, job) as pid, pytest.raises(NotAllowed, match="cgroupfs"):
        host(house, job, pid)


@pytest.fixture
def job_of_the_kernel() -> Callable[[House], Lease]:
    """A lease with memory=kernel on record, as on a kernel that holds it."""

    def make(house: House) -> Lease:
        job = taken(house)
        from sqlalchemy import text

        with house.ledger.write() as tx, tx._connection() as connection:
            told = '{"memory": "kernel", "compute": "mask", "visibility": "environment", "ipc": "shared"}'
            connection.execute(text("UPDATE leases SET guarantee = :told"), {"told": told})
        found = house.ledger.lease(job.id)
        assert found is not None
        return found

    return make


def test_where_containers_are_turned_off_no_lease_has_guests(build: Build, tree: CgroupTree) -> None:
    """A refusal of the field, by the setting's name."""
    house = build(tree=tree, config={"docker": Docker(enabled=False)})
    job = taken(house)
    with within(house, job) as pid, pytest.raises(InvalidField, match=r"docker\.enabled"):
        host(house, job, pid)
