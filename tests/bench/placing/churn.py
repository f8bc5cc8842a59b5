"""Parts of one device that come and go: the CUs that kernels work like, by the rule that picks them.

Every rule sees the same arrivals and departures. VRAM and queue slots never run out: only CUs count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from nodeagent.domain.cuset import CuSet
from nodeagent.domain.device import Device
from nodeagent.domain.geometry import Geometry
from nodeagent.domain.placement import place
from nodeagent.domain.refusals import Refusal
from nodeagent.domain.request import Request, Shape, SliceRequest

from .nodes import Holdings, alone

LEAST, MOST = 5, 50  # percent of a device that a lease asks


@dataclass(frozen=True, slots=True)
class Event:
    """A lease that asks *percent* arrives, or (0) leaves."""

    lease: int
    percent: int


def churn(demand: float, arrivals: int, seed: int) -> Iterator[Event]:
    """Leases of any whole percent from LEAST to MOST, alike often, with lives of an exponential length.

    Args:
        demand: devices' worth of leases that would be there on average if none was refused.
    """
    random, ends = Random(seed), {}
    life = demand * 100 / ((LEAST + MOST) / 2)  # in arrivals
    for lease in range(arrivals):
        for gone in [one for one, end in ends.items() if end <= lease]:
            del ends[gone]
            yield Event(gone, 0)
        ends[lease] = lease + random.expovariate(1 / life)
        yield Event(lease, LEAST + int(random.random() * (MOST - LEAST + 1)))


def capped(events: Iterable[Event]) -> Iterator[Event]:
    """*events* without the leases that would bring the sum of percents over 100: nobody is asked for them."""
    live: dict[int, int] = {}
    for event in events:
        if not event.percent and live.pop(event.lease, 0):
            yield event
        elif event.percent and sum(live.values()) + event.percent <= 100:
            live[event.lease] = event.percent
            yield event


class Rule(Protocol):
    """Picks CUs of one device."""

    def arrive(self, lease: int, percent: int) -> CuSet | None: ...

    def leave(self, lease: int) -> None: ...


class Placed:
    """The agent's placement, in one of its shapes."""

    def __init__(self, device: Device, shape: Shape) -> None:
        self._node, self._shape, self._held = alone(device), shape, Holdings()

    def arrive(self, lease: int, percent: int) -> CuSet | None:
        asked = SliceRequest(cu_percent=percent, vram_bytes=1, queue_slots=1, shape=self._shape)
        placed = place(self._node, self._held.slices, Request((asked,)))
        if isinstance(placed, Refusal):
            return None
        self._held.take(lease, placed)
        return placed[0].cus

    def leave(self, lease: int) -> None:
        self._held.give_back(lease)


class LowestFree:
    """HAMi's rule: the percentage rounded down, then up to whole pairs; the lowest bits that are free."""

    def __init__(self, geometry: Geometry) -> None:
        self._geometry, self._held = geometry, dict[int, CuSet]()

    def arrive(self, lease: int, percent: int) -> CuSet | None:
        pair, total = self._geometry.pair, self._geometry.cus
        wanted = min(total, -(-max(1, total * percent // 100) // pair) * pair)
        free = self._geometry.everything
        for cus in self._held.values():
            free -= cus
        if len(free) < wanted:
            return None
        self._held[lease] = CuSet.of(list(free)[:wanted])
        return self._held[lease]

    def leave(self, lease: int) -> None:
        self._held.pop(lease, None)


def rules(device: Device) -> Mapping[str, Rule]:
    """The rules that are compared, by the name that the report has for them."""
    assert device.geometry
    return {
        "lowest free": LowestFree(device.geometry),
        "even": Placed(device, Shape.EVEN),
        "exact": Placed(device, Shape.EXACT),
    }


@dataclass
class Tally:
    """What one rule came to; the sums are over the arrivals, after each of them."""

    geometry: Geometry
    live: dict[int, CuSet] = field(default_factory=dict)
    arrivals: int = 0
    refused: int = 0
    stuck: int = 0  # leases with an XCC that has no CU
    granted: int = 0
    effective: int = 0

    def arrived(self, lease: int, cus: CuSet | None) -> None:
        self.arrivals += 1
        if cus is None:
            self.refused += 1
        else:
            self.live[lease] = cus
            self.stuck += not self.geometry.effective(cus)
        self.granted += sum(map(len, self.live.values()))
        self.effective += sum(map(self.geometry.effective, self.live.values()))


def deliver(geometry: Geometry, rule: Rule, events: Iterable[Event]) -> Tally:
    """Let *events* happen under *rule*."""
    tally = Tally(geometry)
    for event in events:
        if event.percent:
            tally.arrived(event.lease, rule.arrive(event.lease, event.percent))
        else:
            rule.leave(event.lease)
            tally.live.pop(event.lease, None)
    return tally
