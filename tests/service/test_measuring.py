"""What is measured while the agent works, and gathered when somebody asks."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from service_builders import GIB, House, until, user
from test_watch import Figures, watch_of

from nodeagent.domain.lease import LeaseState
from nodeagent.domain.measures import Sensors, Use
from nodeagent.service import measuring as module
from nodeagent.service.measuring import SensorReader


def test_grants_and_releases_are_timed(house: House) -> None:
    """A lease that is granted at once and proved clean counts once in each histogram."""
    lease = house.grant(cus=8, request_id="a")
    assert house.grant(cus=8, request_id="a").id == lease.id
    assert house.agent.measures().states == {LeaseState.ACTIVE: 1}
    house.release(lease)
    until(lambda: house.agent.measures().releases.counts[-1] == 1)
    found = house.agent.measures()
    assert (found.grants.counts[-1], found.states) == (1, {})
    assert 0 < found.grants.total < found.grants.bounds[-1]


def test_a_scrape_needs_no_writer(house: House) -> None:
    """While somebody writes, and for however long, metrics are gathered."""
    with house.ledger.write():
        assert house.agent.measures().states == {}


@pytest.mark.cgroup2
def test_a_scrape_shows_the_last_look(home: House, children: Any) -> None:
    """What a lease's processes use is of the watch's look, which says how old it is, and who is over."""
    assert home.agent.measures().look_age_seconds is None
    child = children.sleeper()
    lease = home.grant(user(), cus=8, vram_bytes=2 * GIB)
    home.enter(lease, child.pid)
    Figures(home, lease).set(child.pid, 3 * GIB, waves=5, queues=2)
    watch, _ = watch_of(home, further=[home.measuring], over=home.measuring.note_over)
    watch.look()
    found = home.agent.measures()
    device = lease.slices[0].placed.device
    assert found.use[lease.id, device] == Use(3 * GIB, 2, 5, 0)
    assert found.over == {lease.id} and found.look_age_seconds is not None


def test_a_card_that_hangs_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readings that do not come are left out, and those who ask next do not wait for the same card."""
    monkeypatch.setattr(module, "SENSOR_SECONDS", 0.05)
    hangs, asked = threading.Event(), []

    def read(pci: str) -> Sensors:
        asked.append(pci)
        hangs.wait(30)
        return Sensors(1)

    reader = SensorReader(read)
    try:
        assert reader.of(["a"]) == {} and reader.of(["a"]) == {}
        assert asked == ["a"]
    finally:
        hangs.set()


def test_readings_serve_all_who_ask_at_once() -> None:
    """Many scrapes in a second read each card once."""
    asked: list[str] = []

    def read(pci: str) -> Sensors:
        asked.append(pci)
        return Sensors(len(asked))

    reader = SensorReader(read)
    assert reader.of(["a", "b"]) == reader.of(["a", "b"]) == {"a": Sensors(1), "b": Sensors(2)}
