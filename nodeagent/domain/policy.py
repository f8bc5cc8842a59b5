"""Which of the devices that fit a lease's slices go to.

A bounded search: the policy orders the candidates, the first assignment found in that order is taken. Slices
of one lease lie on different devices; devices of one pool share its bytes; numa-bind and link-bind are hard.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from math import comb

from nodeagent.domain.device import Device
from nodeagent.domain.fitting import Offer
from nodeagent.domain.request import Policy, Request

MOST_STEPS = 5_000  # of one search: far above what a lease that fits needs, and well under a second
MOST_GROUPS = 3_000  # of devices compared for their links; beyond, groups are grown around each device

Choice = tuple[tuple[Offer, ...], ...]  # per slice request, as many offers as its count


@dataclass(frozen=True, slots=True)
class Group:
    """One slice request: how many devices it takes and which could serve, the policy's favourite first."""

    count: int
    offers: tuple[Offer, ...]


def ranked(offers: Iterable[Offer], policy: Policy) -> tuple[Offer, ...]:
    """*offers* in the policy's order; ties keep the devices' own order."""
    if policy is Policy.SPREAD:
        return tuple(sorted(offers, key=lambda offer: offer.load))
    return tuple(sorted(offers, key=lambda offer: (not offer.joins, -offer.load)))


@dataclass(frozen=True)
class Links:
    """Direct XGMI links between *devices*."""

    devices: Sequence[Device]

    @cached_property
    def weights(self) -> Mapping[frozenset[str], int]:
        """By unordered pair of keys. Made when asked for: 63 partitions have 4,000, and few requests care."""
        weights: dict[frozenset[str], int] = {}
        for device in self.devices:
            for link in device.peers:
                if link.kind == "xgmi":
                    pair = frozenset((device.key, link.device))
                    weights[pair] = min(link.weight, weights.get(pair, link.weight))
        return weights

    def linked(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self.weights

    def score(self, devices: Iterable[str]) -> tuple[int, int]:
        """(−links, total weight) within a group of devices: the lower, the better connected."""
        found = [
            self.weights[pair] for pair in map(frozenset, combinations(devices, 2)) if pair in self.weights
        ]
        return -len(found), sum(found)


@dataclass(frozen=True, slots=True)
class Assigner:
    """Finds devices for a lease's slices under the request's policy and constraints."""

    policy: Policy
    numa_bind: bool
    link_bind: bool
    links: Links
    room: Mapping[str, int]  # bytes left per pool

    @classmethod
    def of(cls, request: Request, links: Links, room: Mapping[str, int]) -> Assigner:
        return cls(request.placement, request.numa_bind, request.link_bind, links, room)

    def assign(self, groups: Sequence[Group]) -> Choice | None:
        """Offers per group, or None where the search finds no assignment."""
        if not self.numa_bind:
            return self._best(groups)
        nodes = {offer.device.numa_node for group in groups for offer in group.offers} - {None}
        found = []
        for node in sorted(node for node in nodes if node is not None):
            choice = self._best([_only(group, numa_node=node) for group in groups])
            if choice is not None:
                found.append((self._cost(groups, choice), node, choice))
        return min(found, key=lambda one: one[:2])[2] if found else None

    def _cost(self, groups: Sequence[Group], choice: Choice) -> tuple[int, int, int]:
        rank = sum(
            group.offers.index(offer)
            for group, offers in zip(groups, choice, strict=True)
            for offer in offers
        )
        if self.policy is not Policy.TOPOLOGY:
            return 0, 0, rank
        return *self.links.score(offer.device.key for offers in choice for offer in offers), rank

    def _best(self, groups: Sequence[Group]) -> Choice | None:
        if self.policy is Policy.TOPOLOGY:
            steps = _Steps(MOST_STEPS)
            for devices in self._connected(groups):
                narrowed = [_only(group, devices=devices) for group in groups]
                choice = self._search(narrowed, steps)
                if choice is not None:
                    return choice
                if not steps.left:
                    break
        return self._search(groups, _Steps(MOST_STEPS))

    def _connected(self, groups: Sequence[Group]) -> Iterator[frozenset[str]]:
        """Device groups of the right size, the best connected first, then by the policy's order."""
        size = sum(group.count for group in groups)
        keys = list(dict.fromkeys(offer.device.key for group in groups for offer in group.offers))
        if size < 2 or size > len(keys):
            return iter(())
        if comb(len(keys), size) <= MOST_GROUPS:
            grown: Iterable[tuple[str, ...]] = combinations(keys, size)
        else:
            grown = [self._grow(key, keys, size) for key in keys]
        return map(frozenset, sorted(grown, key=self.links.score))

    def _grow(self, seed: str, keys: Sequence[str], size: int) -> tuple[str, ...]:
        """*seed* and the devices that, one after the other, add the most links."""
        grown, rest = [seed], [key for key in keys if key != seed]
        gain = dict.fromkeys(rest, (0, 0))
        while len(grown) < size:
            for key in rest:
                links, weight = self.links.score((key, grown[-1]))
                gain[key] = gain[key][0] + links, gain[key][1] + weight
            best = min(rest, key=gain.__getitem__)
            rest.remove(best)
            grown.append(best)
        return tuple(grown)

    def _search(self, groups: Sequence[Group], steps: _Steps) -> Choice | None:
        if any(len(group.offers) < group.count for group in groups):
            return None
        # The request with the least choice goes first: it is the one that others could starve.
        order = sorted(range(len(groups)), key=lambda at: len(groups[at].offers) - groups[at].count)
        units = [at for at in order for _ in range(groups[at].count)]
        search = _Search(groups, units, self.links if self.link_bind else None, dict(self.room), steps)
        if not search.extend(0):
            return None
        chosen: list[list[Offer]] = [[] for _ in groups]
        for unit, offer in zip(units, search.chosen, strict=True):
            chosen[unit].append(offer)
        return tuple(tuple(offers) for offers in chosen)


class _Steps:
    """A budget of search steps."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left


@dataclass(slots=True)
class _Search:
    """Depth first over the units; those of one group take devices in ascending order, so none comes twice."""

    groups: Sequence[Group]
    units: Sequence[int]  # the group of each unit, groups together
    links: Links | None  # None: links do not matter
    room: dict[str, int]
    steps: _Steps
    chosen: list[Offer] = field(default_factory=list)
    _used: set[str] = field(default_factory=set)

    def extend(self, start: int) -> bool:
        """Place the units from the next one on; *start* is the first offer that its group may still take."""
        at = len(self.chosen)
        if at == len(self.units):
            return True
        group = self.units[at]
        offers = self.groups[group].offers
        same_next = at + 1 < len(self.units) and self.units[at + 1] == group
        for number in range(start, len(offers)):
            if not self._fits(offers[number]):
                continue
            if not self.steps.left:
                return False
            self.steps.left -= 1
            self._take(offers[number])
            if self.extend(number + 1 if same_next else 0):
                return True
            self._give_back()
        return False

    def _fits(self, offer: Offer) -> bool:
        key = offer.device.key
        return (
            key not in self._used
            and offer.placed.vram_bytes <= self.room[offer.placed.pool]
            and (self.links is None or all(self.links.linked(key, other) for other in self._used))
        )

    def _take(self, offer: Offer) -> None:
        self.chosen.append(offer)
        self._used.add(offer.device.key)
        self.room[offer.placed.pool] -= offer.placed.vram_bytes

    def _give_back(self) -> None:
        offer = self.chosen.pop()
        self._used.remove(offer.device.key)
        self.room[offer.placed.pool] += offer.placed.vram_bytes


def _only(group: Group, *, numa_node: int | None = None, devices: frozenset[str] | None = None) -> Group:
    return Group(
        group.count,
        tuple(
            offer
            for offer in group.offers
            if (numa_node is None or offer.device.numa_node == numa_node)
            and (devices is None or offer.device.key in devices)
        ),
    )
