"""Which of the devices that fit a lease's slices go to.

A bounded search: the policy orders the candidates, the first assignment found in that order is taken. Slices
of one lease lie on different devices; devices of one pool share its bytes; numa-bind and link-bind are hard.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import nsmallest
from itertools import combinations
from math import comb

from nodeagent.domain.device import Device
from nodeagent.domain.fitting import Offer, Site
from nodeagent.domain.request import Policy, Request

MOST_STEPS = 5_000  # of one search: far above what a lease that fits needs, and well under a second
MOST_GROUPS = 3_000  # of devices compared for their links; beyond, groups are grown around each device
MOST_ALIKE = 50  # device groups tried for their links where links come second

Choice = tuple[tuple[Offer, ...], ...]  # per slice request, as many offers as its count


@dataclass(frozen=True, slots=True)
class Group:
    """One slice request: how many devices it takes and which could serve, the policy's favourite first."""

    count: int
    offers: tuple[Offer, ...]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """How the devices of a node stand, whether or not they could serve."""

    idle: frozenset[str]  # keys of those with nobody on them
    cards: Mapping[str, float]  # by PCI address, the load of all its partitions together

    @classmethod
    def of(cls, sites: Iterable[Site]) -> Surroundings:
        idle, cards = set(), dict[str, float]()
        for site in sites:
            if not site.usage.present:
                idle.add(site.device.key)
            cards[site.device.pci] = cards.get(site.device.pci, 0) + site.usage.load(site.device)
        return cls(frozenset(idle), cards)

    def parted(self, device: Device) -> int:
        """Idle devices that lose an idle one that they are linked with, if *device* is taken."""
        if device.key not in self.idle:
            return 0
        return sum(link.kind == "xgmi" and link.device in self.idle for link in device.peers)


def ranked(offers: Iterable[Offer], policy: Policy, around: Surroundings) -> tuple[Offer, ...]:
    """*offers* in the policy's order; ties keep the devices' own order.

    Of idle devices those go first that have the fewest links to other idle ones: a group of linked devices
    that is broken into already is used up before the next one is, for those who ask for several linked ones.
    Partitions that are alike otherwise are filled card by card, or spread over the cards.
    """

    def fill(offer: Offer) -> tuple[bool, float, int, float]:
        device = offer.device
        return not offer.joins, -offer.load, around.parted(device), -around.cards[device.pci]

    def spread(offer: Offer) -> tuple[float, float, int]:
        return offer.load, around.cards[offer.device.pci], around.parted(offer.device)

    return tuple(sorted(offers, key=spread if policy is Policy.SPREAD else fill))


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
        steps = _Steps(MOST_STEPS)
        for devices in self._candidates(groups):
            narrowed = [_only(group, devices=devices) for group in groups]
            choice = self._search(narrowed, steps)
            if choice is not None:
                return choice
            if not steps.left:
                break
        return self._search(groups, _Steps(MOST_STEPS))

    def _candidates(self, groups: Sequence[Group]) -> Iterable[frozenset[str]]:
        """Device groups of the right size, the best first; of equals those of the policy's favourites."""
        size = sum(group.count for group in groups)
        keys = list(dict.fromkeys(offer.device.key for group in groups for offer in group.offers))
        if size < 2 or size > len(keys):
            return ()
        few = comb(len(keys), size) <= MOST_GROUPS
        if self.policy is Policy.TOPOLOGY:
            return self._connected(keys, size, few)
        return self._alike(groups[0], size) if few and len(groups) == 1 else ()

    def _connected(self, keys: Sequence[str], size: int, few: bool) -> Iterator[frozenset[str]]:
        """The best connected first."""
        grown = combinations(keys, size) if few else (self._grow(key, keys, size) for key in keys)
        return map(frozenset, sorted(grown, key=self.links.score))

    def _alike(self, group: Group, size: int) -> Iterator[frozenset[str]]:
        """What the policy likes best first, and of what it likes alike, as whole devices, the best connected.

        Only the first few: what the policy likes less is the search's to find.
        """
        offers = {offer.device.key: offer for offer in group.offers}
        sign = 1 if self.policy is Policy.SPREAD else -1

        def worth(keys: tuple[str, ...]) -> tuple[int, float, tuple[int, int]]:
            joining = sum(offers[key].joins for key in keys) if sign < 0 else 0
            return -joining, sign * sum(offers[key].load for key in keys), self.links.score(keys)

        return map(frozenset, nsmallest(MOST_ALIKE, combinations(offers, size), key=worth))

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
