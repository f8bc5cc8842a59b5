"""What a start costs: it takes up all leases together, not each of them."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from service_builders import GIB, House

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.fdinfo import drm_clients
from nodeagent.adapters.kfd_usage import kfd_use, sdma_us
from nodeagent.adapters.sysfs import SysTree
from nodeagent.ledger.engine import connect
from nodeagent.service.effects import Effect
from nodeagent.service.foreign import Foreign
from nodeagent.service.sampling import Sources
from nodeagent.service.upkeep import Upkeep
from nodeagent.service.watch import Watch

Start = Callable[[], House]


@contextlib.contextmanager
def statements() -> Iterator[list[str]]:
    """Every SQL statement that is sent meanwhile, on whichever connection that is made for it."""
    sent: list[str] = []

    def traced(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
        connection = connect(path, read_only=read_only)
        connection.set_trace_callback(lambda sql: sent.append(re.sub(r"'(?:[^']|'')*'|[0-9.]+", "?", sql)))
        return connection

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nodeagent.ledger.engine.connect", traced)
        yield sent


@pytest.fixture
def start(build, tree: CgroupTree) -> Start:
    """Start an agent over what the last one left, and let its watch look once."""

    def again() -> House:
        house = build(tree=tree)
        watch_of(house).look()
        return house

    return again


def watch_of(house: House) -> Watch:
    files = SysTree(house.root)
    sources = Sources(
        kfd=lambda pids: kfd_use(files, pids),
        drm=lambda pids: drm_clients(house.root / "proc", pids),
        sdma_us=lambda pids: sdma_us(files, pids),
    )
    kept: dict[str, Effect] = dict(house.tiers.kept)
    upkeep = Upkeep(house.ledger, house.clock, house.locks, kept)
    return Watch(
        house.ledger,
        house.clock,
        house.survey,
        house.releaser,
        house.changes,
        house.tree,
        None,
        sources,
        Foreign(),
        further=[upkeep],
    )


def sent_by(start: Start) -> tuple[list[str], House]:
    with statements() as sent:
        house = start()
    return list(sent), house  # its connections are traced for as long as they live


@pytest.mark.cgroup2
def test_a_start_asks_the_ledger_as_often_for_many_leases_as_for_one(start: Start) -> None:
    """Reconcile, watch, upkeep, census: each reads what it wants of all leases at once."""
    house = start()
    house.grant(cus=2, vram_bytes=GIB)
    house.die()
    few, house = sent_by(start)
    for _ in range(5):
        house.grant(cus=2, vram_bytes=GIB)
    house.die()
    many, house = sent_by(start)
    assert many == few
    assert len(house.ledger.live()) == 6
