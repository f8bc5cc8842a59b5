"""`nodeagent doctor`: gathers the facts that the checks judge, each kind by itself and for a bounded time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nodeagent.adapters.bounded import Bounded
from nodeagent.doctor import hardware, holding, outside, own, using
from nodeagent.doctor.scene import Scene
from nodeagent.domain.doctor import CHECKS, Finding, examine
from nodeagent.domain.doctor.agent import Service, State
from nodeagent.domain.doctor.cards import Cards
from nodeagent.domain.doctor.cgroups import Cgroups, Vram
from nodeagent.domain.doctor.check import Unseen
from nodeagent.domain.doctor.devices import Devices
from nodeagent.domain.doctor.driver import Driver
from nodeagent.domain.doctor.engines import Engines, Slurm
from nodeagent.domain.doctor.leftovers import Leftovers
from nodeagent.domain.doctor.programs import Programs
from nodeagent.domain.doctor.usage import Usage

SECONDS = 10.0  # for each kind of facts: a driver that hangs holds up its own checks alone

GATHER: Mapping[type[Any], Callable[[Scene], object]] = {
    Driver: hardware.driver,
    Cards: hardware.cards,
    Devices: hardware.devices,
    Cgroups: holding.cgroups,
    Vram: holding.vram,
    Programs: holding.programs,
    Slurm: outside.slurm,
    Engines: outside.engines,
    Service: own.service,
    State: own.state,
    Usage: using.usage,
    Leftovers: own.leftovers,
}

__all__ = ["GATHER", "SECONDS", "Scene", "look"]


def look(
    scene: Scene,
    gather: Mapping[type[Any], Callable[[Scene], object]] = GATHER,
    seconds: float = SECONDS,
) -> list[Finding]:
    """Every check's finding on *scene*."""
    return examine(CHECKS, {part: _facts(scene, how, seconds) for part, how in gather.items()})


def _facts(scene: Scene, how: Callable[[Scene], object], seconds: float) -> object:
    try:
        facts = Bounded[object](seconds).call(lambda: how(scene))
    except Exception as fault:  # its checks say so, each on its line
        return fault
    return Unseen(f"looking took more than {seconds:g} s, and was given up") if facts is None else facts
