"""What becomes of the kernel's words about its cards."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from service_builders import House, outside

from nodeagent.adapters.kernel_log import Line, Read
from nodeagent.service.kernel_faults import KernelFaults


class Scripted:
    """A log of what the test puts there."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.lost = self.fails = False

    def open(self) -> None:
        if self.fails:
            raise outside()

    def say(self, text: str, device: str | None) -> None:
        self.lines.append(Line(f"amdgpu {device}: amdgpu: {text}", device))

    def read(self) -> Read:
        found, self.lines = tuple(self.lines), []
        return Read(found, self.lost)


@pytest.fixture
def heard(house: House) -> tuple[House, Scripted, KernelFaults, Any]:
    source = Scripted()
    look: Any = SimpleNamespace(inventory=house.survey.found())
    return house, source, KernelFaults(source, house.ledger, house.clock), look


def told(house: House) -> list[Any]:
    return [event for event in house.ledger.events(limit=1000) if event.kind == "kernel_fault"]


def test_faults_are_events_of_their_device(heard: Any) -> None:
    """One event for each kind and card, with the first line, how many there were, and the device."""
    house, source, faults, look = heard
    device = look.inventory.devices[0]
    for ring in ("gfx_0.0.0", "comp_1.0.0"):
        source.say(f"ring {ring} timeout", device.pci)
    source.say("page fault", "0000:ee:00.0")
    faults.note(look)
    first, second = told(house)
    assert (first.device, first.data) == (
        device.key,
        {"fault": "ring_timeout", "pci": device.pci, "lines": 2},
    )
    assert "gfx_0.0.0" in first.reason
    assert (second.device, second.data["pci"]) == (None, "0000:ee:00.0")
    assert faults.counts() == {(device.pci, "ring_timeout"): 2, ("0000:ee:00.0", "page_fault"): 1}


def test_a_storm_is_few_events(heard: Any) -> None:
    """Within a minute the same is told once; what came meanwhile is in the next one's count."""
    house, source, faults, look = heard
    for _ in range(50):
        source.say("page fault", "0000:c1:00.0")
        faults.note(look)
    assert [event.data["lines"] for event in told(house)] == [1]
    house.clock.turn(61)
    faults.note(look)
    assert [event.data["lines"] for event in told(house)] == [1, 49]


def test_lines_that_were_lost_are_counted(heard: Any) -> None:
    """A log that ran over is known to have."""
    _, source, faults, look = heard
    source.lost = True
    faults.note(look)
    assert faults.lost == 1


def test_a_node_without_the_log_goes_on(heard: Any) -> None:
    """Where the log cannot be read the watch does its other work."""
    house, source, faults, look = heard
    source.fails = True
    faults.note(look)
    faults.note(look)
    assert told(house) == []
