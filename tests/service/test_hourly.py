"""The hourly record, and its alarms."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from service_builders import House

from nodeagent.domain.measures import PciLink
from nodeagent.ledger.boot_file import BootFile
from nodeagent.service.hourly import Hourly, size_of

MIB = 1 << 20


class World:
    """One card that a test changes, and who records it."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.look: Any = SimpleNamespace(inventory=house.survey.found())
        self.pool = self.look.inventory.pools[0].key
        self.idle: dict[str, int] = {self.pool: 100 * MIB}
        self.link: PciLink | None = PciLink(16, 16, 32.0, 32.0)
        self.start()

    def start(self) -> None:
        """Record as an agent does that was started anew."""
        file = BootFile(self.house.root.parent / "first_idle", self.house.clock, size_of)
        self.hourly = Hourly(
            self.house.ledger, self.house.clock, self.idle.get, lambda pci: self.link, file,
            tolerance_bytes=256 * MIB,
        )  # fmt: skip

    def hour(self) -> list[str]:
        """The kinds of the events of the next record."""
        self.house.clock.turn(3600)
        last = max((event.id for event in self.house.ledger.events(limit=1000)), default=0)
        self.hourly.note(self.look)
        return [event.kind for event in self.house.ledger.events(after=last, limit=1000)]


@pytest.fixture
def world(house: House) -> World:
    return World(house)


def test_an_hour_is_one_record(world: World) -> None:
    """Idle use of each pool and the link of each card are recorded once an hour, and no more often."""
    assert world.hour() == ["recorded"]
    world.house.clock.turn(3599)
    world.hourly.note(world.look)
    (event,) = [one for one in world.house.ledger.events(limit=1000) if one.kind == "recorded"]
    assert event.data["idle_bytes"] == {world.pool: 100 * MIB}
    assert set(event.data["links"]) == {one.pci for one in world.look.inventory.devices}


def test_idle_use_that_grows_is_told_once(world: World) -> None:
    """What stays behind little by little is an alarm once it comes to the tolerance, over a restart too."""
    world.hour()
    world.idle[world.pool] += 200 * MIB
    world.start()
    assert world.hour() == ["recorded"]
    world.idle[world.pool] += 56 * MIB
    assert world.hour() == ["recorded", "idle_drifted"]
    assert world.hourly.drift == {world.pool: 256 * MIB}
    assert world.hour() == ["recorded"]


def test_another_boot_begins_anew(world: World) -> None:
    """A driver that was loaded anew may use what it uses."""
    world.hour()
    world.house.clock.reboot()
    world.idle[world.pool] += 999 * MIB
    world.start()
    world.hour()
    assert world.hourly.drift == {world.pool: 0}
