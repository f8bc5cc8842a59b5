"""Whose the processes in containers are, and which containers may be stopped for having no lease."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from service_builders import GIB, House, admin, user

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.container_processes import in_container_of
from nodeagent.domain.container import NOTE, Container, Engine
from nodeagent.domain.lease import Lease
from nodeagent.service.owners import owners

pytestmark = pytest.mark.root
Build = Callable[..., House]


@pytest.fixture
def house(build: Build, engine: FakeEngine, tree: CgroupTree) -> House:
    return build(tree=tree, engines={Engine.DOCKER: engine})


@contextmanager
def contained(house: House, other: Path, lease: Lease | None = None) -> Iterator[int]:
    """The pid of a process as in a container: the note of *lease*, else *other*, is mounted at its place."""
    other.touch()
    note = house.dock.files.note(lease.id) if lease else other
    place = f"mount -t tmpfs none /etc && mkdir {Path(NOTE).parent} && touch {NOTE}"
    script = f"{place} && mount --bind {note} {NOTE} && echo ready && exec sleep 60"
    with subprocess.Popen(["unshare", "--mount", "sh", "-ec", script], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        yield child.pid
        child.kill()


def place(house: House, pid: int, container: str) -> None:
    """Put a process into a cgroup that is named for a container."""
    assert house.tree is not None
    with house.tree.open(house.tree.scratch(container)) as cgroup:
        cgroup.move(pid)


def test_processes_in_containers_are_their_leases(house: House, tmp_path: Path) -> None:
    """By the note that their engine mounted, wherever their cgroup is; not after the lease has ended."""
    lease = house.grant(user(1000), container=Container(Engine.NERDCTL), cus=8, vram_bytes=GIB)
    with contained(house, tmp_path / "x", lease) as pid:
        whose = owners(house.ledger, house.tree, house.clock, house.dock.mounts.of).of(pid)
        assert whose is not None and whose.owner == lease.id
    house.release(lease)
    with contained(house, tmp_path / "y") as pid:
        whose = owners(house.ledger, house.tree, house.clock, house.dock.mounts.of).of(pid)
        assert whose is not None and whose.owner is None


def test_a_lease_is_not_freed_under_a_container(build: Build, tree: CgroupTree, tmp_path: Path) -> None:
    """One that no engine told of, as a CDI device's may be: its processes are seen by the note."""
    engine = FakeEngine(version="1")
    house = build(tree=tree, engines={Engine.DOCKER: engine})
    lease = house.grant(user(1000), container=Container(Engine.DOCKER), cus=8, vram_bytes=GIB)
    with contained(house, tmp_path / "x", lease) as pid:
        ended = house.release(lease)
        assert ended.state == "failed"
        assert str(pid) in (ended.reason or "")
    house.clock.turn(120)
    house.look()
    house.agent.clear_lease(admin(), lease.id)
    assert not house.ledger.quarantined()


def test_the_end_of_a_lease_stops_only_containers_of_its_processes(
    build: Build, tree: CgroupTree, tmp_path: Path
) -> None:
    """Not one that a container's root named a cgroup for: it would end its neighbour's (threat 14)."""
    engine = FakeEngine(version="1")
    house = build(tree=tree, engines={Engine.DOCKER: engine})
    lease = house.grant(user(1000), container=Container(Engine.DOCKER), cus=8, vram_bytes=GIB)
    mine, neighbours = engine.create({}, status="running"), engine.create({}, status="running")
    with contained(house, tmp_path / "x", lease) as pid, contained(house, tmp_path / "y") as other:
        place(house, pid, neighbours)
        engine.pids |= {mine: pid, neighbours: other}
        house.release(lease)
        assert ("stop", neighbours) not in engine.calls
        place(house, pid, mine)
        house.clock.turn(120)
        house.agent.clear_lease(admin(), lease.id)
        assert ("stop", mine) in engine.calls


def test_processes_are_gathered_where_an_engine_has_them_elsewhere(
    build: Build, tree: CgroupTree, tmp_path: Path
) -> None:
    """On version 1: into the lease's cgroup, only those that have its note."""
    engine = FakeEngine(version="1")
    house = build(tree=tree, engines={Engine.DOCKER: engine})
    lease = house.grant(user(1000), container=Container(Engine.DOCKER), cus=8, vram_bytes=GIB)
    view = house.agent.container(user(1000), lease)
    assert view is not None and view.cgroup_parent is None
    with contained(house, tmp_path / "x", lease) as pid, contained(house, tmp_path / "y") as other:
        house.look()
        assert house.procs(lease) == (pid,)
        assert other not in house.procs(lease)


def test_a_container_without_a_lease_is_stopped(house: House, engine: FakeEngine, tmp_path: Path) -> None:
    """Where the site wants that: by the engine whose container the process provably is in."""
    container = engine.create({}, status="running")
    with contained(house, tmp_path / "x") as pid:
        place(house, pid, container)
        engine.pids[container] = pid
        assert house.dock.foreign(house.ledger).stop(pid) == container
        assert engine.calls == [("stop", container)]


def test_a_cgroup_that_a_user_named_for_a_container_stops_nobody(
    house: House, engine: FakeEngine, tmp_path: Path
) -> None:
    """The container's own first process is elsewhere (threat 14)."""
    container = engine.create({}, status="running")
    with contained(house, tmp_path / "x") as pid, contained(house, tmp_path / "y") as first:
        place(house, pid, container)
        engine.pids[container] = first
        assert not in_container_of(pid, first, container)
        assert house.dock.foreign(house.ledger).stop(pid) is None
        assert engine.calls == []


def test_a_leased_container_is_not_foreign(house: House, engine: FakeEngine, tmp_path: Path) -> None:
    """Though its processes are in a cgroup of the engine's own."""
    lease = house.grant(user(1000), container=Container(Engine.DOCKER), cus=8, vram_bytes=GIB)
    container = engine.create({}, status="running")
    with contained(house, tmp_path / "x", lease) as pid:
        place(house, pid, container)
        engine.pids[container] = pid
        assert house.dock.foreign(house.ledger).stop(pid) is None
