"""An agent over a real cgroup subtree, and processes that leave shared memory in its leases."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from ipc_house import UID, IpcHouse, Maker, SteppedClock, remove_all

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.domain.lease import Lease


@pytest.fixture
def makers() -> Iterator[Callable[..., Maker]]:
    """Start makers; they are ended, and what the users left is removed."""
    started: list[Maker] = []

    def start(uid: int = UID, *what: str, lease: tuple[IpcHouse, Lease] | None = None) -> Maker:
        started.append(Maker(uid))
        if lease is not None:
            house, entered = lease
            house.enter(entered, started[-1].process.pid)
            house.census.look()
        started[-1].make(*what)
        return started[-1]

    yield start
    for maker in started:
        maker.end()
    remove_all()


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def ipc(tmp_path: Path, clock, tree: CgroupTree, migrated: Path, materialised) -> Iterator[IpcHouse]:
    state, root = tmp_path / "state", tmp_path / "machine"
    state.mkdir(mode=0o700)
    shutil.copy(migrated, state / "ledger.sqlite3")
    shutil.copytree(materialised("vega10"), root, symlinks=True)
    house = IpcHouse(state, root, clock, tree=tree, timeout=20)
    house.open()
    yield house
    house.die()


@pytest.fixture
def name() -> str:
    return f"nodeagent-test-{os.getpid()}-{time.monotonic_ns()}"
