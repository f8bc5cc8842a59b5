"""Agents over a copy of a machine's files, children to hold leases, and cgroups of each test's own."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_engine import FakeEngine
from guest_world import taken, within
from service_builders import House, until
from service_world import ScriptedEffect, TurnedClock
from slurm_world import NODE, Scope, Stepds

from nodeagent.adapters import machine
from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.cgroup_mount import find_mount
from nodeagent.adapters.hook_files import HookFiles
from nodeagent.adapters.peer import peer_of
from nodeagent.domain.lease import Lease
from nodeagent.ledger.migrate import migrate
from nodeagent.service.orders import Caller

Build = Callable[..., House]


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database of the newest schema, to be copied."""
    path = tmp_path_factory.mktemp("migrated") / "ledger.sqlite3"
    migrate(path)
    return path


@pytest.fixture(scope="session")
def materialised(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A machine's files by its name, written once; whoever changes them works on a copy."""
    made: dict[str, Path] = {}

    def find(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("machines") / name
            machine.materialise(machine.find(name), made[name])
        return made[name]

    return find


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


@pytest.fixture
def build(
    tmp_path: Path, clock: TurnedClock, migrated: Path, materialised: Callable[[str], Path]
) -> Iterator[Build]:
    """Build an agent; again: another one over the same state, the first being dead or to die."""
    houses: list[House] = []
    state, root = tmp_path / "state", tmp_path / "machine"

    def make(name: str = "vega10", **changes: Any) -> House:
        if not state.exists():
            state.mkdir(mode=0o700)
            shutil.copy(migrated, state / "ledger.sqlite3")
            shutil.copytree(materialised(name), root, symlinks=True)
        houses.append(House(state, root, clock, name=name, **changes).open())
        return houses[-1]

    yield make
    for house in houses:
        house.die()


@pytest.fixture
def hook_files(tmp_path: Path) -> Iterator[HookFiles]:
    """The hook's files of an instance of the test's own, with any file for a library."""
    if os.geteuid() != 0:
        pytest.skip("needs root: the hook believes only files that root owns")
    library = tmp_path / "lib.so"
    library.write_bytes(b"\x7fELF")
    made = HookFiles("gpulease_test", root=tmp_path / "run" / "hook", library=library)
    yield made
    for lease in range(1, 100):
        made.remove(lease)
    made.leave()


@pytest.fixture
def house(build: Build) -> House:
    """An agent without cgroups on a machine of two devices."""
    return build()


@pytest.fixture
def effect() -> ScriptedEffect:
    return ScriptedEffect()


@pytest.fixture
def tree() -> Iterator[CgroupTree]:
    """A cgroup subtree on the real mount, removed after the test."""
    mount = find_mount()
    assert mount is not None
    made = CgroupTree(mount, f"gpulease_service{secrets.token_hex(6)}.slice")
    assert made.writable() is None
    yield made
    ref = made.resolve(made.instance)
    if ref is not None:
        with made.open(ref) as cgroup:
            cgroup.kill()
            while cgroup.populated():
                pass
            cgroup.remove()


@pytest.fixture
def home(build: Build, tree: CgroupTree) -> House:
    """An agent with a cgroup subtree of its own, patient with dying processes."""
    return build(tree=tree, timeout=20)


@dataclass
class Children:
    """Processes of the test: sleepers, and peers that really connected."""

    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    peers: dict[int, socket.socket] = field(default_factory=dict)

    def sleeper(self) -> subprocess.Popen[bytes]:
        self.started.append(subprocess.Popen(["sleep", "600"]))
        return self.started[-1]

    def peer(self, uid: int | None = None, *, administrator: bool = False) -> Caller:
        """A forked child that connects as *uid* and then lives until the test ends it."""
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f"\0nodeagent-service-{secrets.token_hex(8)}")
        listener.listen()
        pid = os.fork()
        if pid == 0:
            try:
                if uid is not None:
                    os.setgroups([])
                    os.setresgid(uid, uid, uid)
                    os.setresuid(uid, uid, uid)
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.connect(listener.getsockname())
                    connection.recv(1)
            finally:
                os._exit(0)
        with listener:
            listener.settimeout(20)
            connection, _ = listener.accept()
        self.peers[pid] = connection
        peer = peer_of(connection)
        return Caller(peer.uid, peer.gid, frozenset(peer.groups), peer.pid, peer.pidfd, administrator)

    def end(self, pid: int) -> None:
        """Kill and reap one peer."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.peers.pop(pid).close()


@pytest.fixture
def children() -> Iterator[Children]:
    """Start children; all are ended after the test."""
    children = Children()
    yield children
    for child in children.started:
        child.kill()
        child.wait()
    for pid in list(children.peers):
        children.end(pid)


@pytest.fixture
def scope(tree: CgroupTree) -> Iterator[Scope]:
    """A scope of a node name that no other agent looks for."""
    outer = tree.mount / f"slurmtest{secrets.token_hex(4)}.slice"
    inner = outer / f"{NODE}_slurmstepd.scope"
    inner.mkdir(parents=True)
    yield Scope(tree, f"/{outer.name}/{inner.name}")
    left = tree.resolve(f"/{outer.name}")
    with tree.open(left) as cgroup:
        cgroup.kill()
        until(lambda: not cgroup.populated())
        cgroup.remove()


@pytest.fixture
def stepds() -> Iterator[Stepds]:
    """In a directory that every user reaches."""
    directory = Path("/tmp") / f"nodeagent-stepd-{secrets.token_hex(6)}"
    directory.mkdir(mode=0o755)
    made = Stepds(directory)
    yield made
    made.end()
    for one in directory.iterdir():
        one.unlink()
    directory.rmdir()


@pytest.fixture
def engine() -> FakeEngine:
    """A container engine that does what a test says."""
    return FakeEngine()


@pytest.fixture
def job(house: House) -> Lease:
    """The lease of a job of uid 1000, in the *house* of the test's module."""
    return taken(house)


@pytest.fixture
def inside(house: House, job: Lease) -> Iterator[int]:
    """A process of that job."""
    with within(house, job) as pid:
        yield pid
