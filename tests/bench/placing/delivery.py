"""The churn of `churn` on every kind of device that the machine files have, under every rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from nodeagent.adapters import machine
from nodeagent.domain.device import Device
from nodeagent.domain.geometry import Geometry

from .churn import capped, churn, deliver, rules
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


def measure(arrivals: int = ARRIVALS) -> Iterator[Figures]:
    """A row for each kind of device, cap and demand."""
    for geometry, (names, device) in kinds().items():
        for cap in (True, False):
            for demand in DEMANDS:
                figures = _figures(device, geometry, cap, demand, arrivals)
                yield {
                    "machines": names,
                    "cus": geometry.cus,
                    "capped": cap,
                    "demand": demand,
                    "rules": figures,
                }


def _figures(
    device: Device, geometry: Geometry, cap: bool, demand: int, arrivals: int
) -> Mapping[str, Figures]:
    events = partial(churn, demand, arrivals)
    found = {}
    for name in rules(device):
        tallies = [
            deliver(geometry, rules(device)[name], capped(events(seed)) if cap else events(seed))
            for seed in SEEDS
        ]
        asked = sum(one.arrivals for one in tallies)
        found[name] = {
            "granted_cus": round(sum(one.granted for one in tallies) / asked, 1),
            "effective_cus": round(sum(one.effective for one in tallies) / asked, 1),
            "refused_percent": round(100 * sum(one.refused for one in tallies) / asked, 1),
            "stuck": sum(one.stuck for one in tallies),
        }
    return found
