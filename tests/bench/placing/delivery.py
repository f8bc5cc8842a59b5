"""The churn of `churn` on every kind of device that the machine files have, under every rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from nodeagent.adapters import machine
from nodeagent.domain.device import Device
from nodeagent.domain.geometry import Geometry

from .churn import Tally, capped, churn, deliver, rules
from .nodes import inventory

DEMANDS = (1, 4, 16)  # devices' worth of leases that would be there if none was refused
ARRIVALS = 1500
SEEDS = (1, 2)

Figures = dict[str, Any]


def kinds() -> Mapping[Geometry, tuple[list[str], Device]]:
    """Each geometry once: the machines that have it, and one of their devices."""
    found: dict[Geometry, tuple[list[str], Device]] = {}
    for name in machine.names():
        device = inventory(name).devices[0]
        assert device.geometry
        found.setdefault(device.geometry, ([], device))[0].append(name)
    return found


def measure() -> Iterator[Figures]:
    """A row for each kind of device, cap and demand."""
    for geometry, (names, device) in kinds().items():
        for cap, demand in product((True, False), DEMANDS):
            yield {
                "machines": names,
                "cus": geometry.cus,
                "capped": cap,
                "demand": demand,
                "rules": figures(device, cap, demand),
            }


def figures(device: Device, cap: bool, demand: int) -> Mapping[str, Figures]:
    """What each rule came to."""
    return {name: _sum([_tally(device, name, cap, demand, seed) for seed in SEEDS]) for name in rules(device)}


def _tally(device: Device, name: str, cap: bool, demand: int, seed: int) -> Tally:
    events = churn(demand, ARRIVALS, seed)
    assert device.geometry
    return deliver(device.geometry, rules(device)[name], capped(events) if cap else events)


def _sum(tallies: Sequence[Tally]) -> Figures:
    arrivals = sum(one.arrivals for one in tallies)
    return {
        "granted_cus": round(sum(one.granted for one in tallies) / arrivals, 1),
        "effective_cus": round(sum(one.effective for one in tallies) / arrivals, 1),
        "refused_percent": round(100 * sum(one.refused for one in tallies) / arrivals, 1),
        "stuck": sum(one.stuck for one in tallies),
    }
