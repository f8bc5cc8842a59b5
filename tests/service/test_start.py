"""What a start costs: it takes up all leases together, not each of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
from service_builders import GIB, House
from sqlalchemy import event
from sqlalchemy.engine import Engine

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.fdinfo import drm_clients
from nodeagent.adapters.kfd_usage import kfd_use, sdma_us
from nodeagent.adapters.sysfs import SysTree
from nodeagent.service.effects import Effect
from nodeagent.service.foreign import Foreign
from nodeagent.service.sampling import Sources
from nodeagent.service.upkeep import Upkeep
from nodeagent.service.watch import Watch

Start = Callable[[], House]


@contextlib.contextmanager
def statements() -> Iterator[list[str]]:
    """Every SQL statement that is sent meanwhile, by whichever engine."""
    sent: list[str] = []

    def note(connection, cursor, statement, *rest) -> None:
        sent.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(Engine, "before_cursor_execute", note)


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
    return sent, house


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
