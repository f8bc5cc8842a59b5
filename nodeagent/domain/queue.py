"""Who waits: in which order, what is kept for the first of them, and who may pass.

A request passes one that waits only where it cannot delay it: EASY backfill (Lifka, "The ANL/IBM SP
scheduling system", 1995), with one reservation for each group of devices.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from nodeagent.domain.clock import SECOND_NS
from nodeagent.domain.device import DeviceState, Inventory
from nodeagent.domain.lease import HeldSlice, HolderKind, PlacedSlice, SliceState
from nodeagent.domain.ownership import Asker, barred
from nodeagent.domain.placement import place
from nodeagent.domain.refusals import Code, DeviceRefusal, Refusal
from nodeagent.domain.request import Priority, Request
from nodeagent.domain.selectors import mismatch

AGING_NS = 3600 * SECOND_NS  # after that `low` waits as `normal` does
ROOT = 0
_RANKS = {priority: number for number, priority in enumerate(Priority)}


class Turn(Enum):
    """What came of a request's turn."""

    TAKEN = auto()  # it has its slices
    WAITS = auto()  # for capacity
    OVER_QUOTA = auto()  # for leases that count with it, wherever there is room: so nothing is kept for it


@dataclass(frozen=True, slots=True)
class Waiting:
    """One request that waits. *owner* is whose turn it takes; *lease* grows with its arrival."""

    lease: int
    owner: int
    kind: HolderKind
    request: Request
    since_ns: int  # boot time
    groups: frozenset[int] = frozenset()  # of the owner, as far as the site's settings name them

    @property
    def asker(self) -> Asker:
        return Asker(self.kind, uid=self.owner, groups=self.groups)

    @property
    def privileged(self) -> bool:
        """Whether devices are kept for it as long as it waits: of high priority, and root's or a job's."""
        roots = self.owner == ROOT or self.kind is HolderKind.SLURM
        return roots and self.request.priority is Priority.HIGH

    def rank(self, now_ns: int) -> int:
        """Its priority as a number, the first one lowest."""
        rank = _RANKS[self.request.priority]
        aged = self.request.priority is Priority.LOW and now_ns - self.since_ns >= AGING_NS
        return _RANKS[Priority.NORMAL] if aged else rank


@dataclass(frozen=True, slots=True)
class Outlook:
    """Where a request will go, as far as can be told now."""

    devices: frozenset[str]
    pools: frozenset[str]
    ends: frozenset[int]  # the leases there that are to end before
    starts_ns: int | None  # boot time; None: the end of one of them is not known

    def touches(self, placed: Iterable[PlacedSlice]) -> bool:
        return any(one.device in self.devices or one.pool in self.pools for one in placed)


@dataclass(frozen=True, slots=True)
class Reservation:
    """What is kept for a request that waits."""

    waiting: Waiting
    outlook: Outlook
    until_ns: int  # boot time

    def binds(self, request: Request, kind: HolderKind, now_ns: int) -> bool:
        """Whether what comes now stands behind it: not of a higher priority, and no job that Slurm starts.

        Slurm has given a job its devices already: what waits in its queue is a whole allocation.
        """
        if now_ns >= self.until_ns or kind is HolderKind.SLURM:
            return False
        return _RANKS[request.priority] >= self.waiting.rank(now_ns)


@dataclass(frozen=True, slots=True)
class Ground:
    """What requests are placed on."""

    inventory: Inventory
    shared_cu_percent: float = 25

    def place(
        self, waiting: Waiting, held: Sequence[HeldSlice], devices: Collection[str]
    ) -> tuple[PlacedSlice, ...] | None:
        """Slices beside *held* on no others than *devices*. Raises what `placement.place` does."""
        placed = place(
            narrowed(self.inventory, devices),
            held,
            waiting.request,
            shared_cu_percent=self.shared_cu_percent,
            asker=waiting.asker,
        )
        return None if isinstance(placed, Refusal) else placed

    def candidates(self, waiting: Waiting) -> frozenset[str]:
        """The devices that a request could have a slice of, with nobody on them."""
        asker = waiting.asker
        return frozenset(
            device.key
            for device in self.inventory.devices
            if any(
                mismatch(device, asked) is None and barred(device, asked, asker) is None
                for asked in waiting.request.slices
            )
        )


def in_order(waiting: Iterable[Waiting], now_ns: int, served: Mapping[int, int] = {}) -> list[Waiting]:
    """By priority; then each owner's first request before anybody's second, in rounds; then as they came.

    *served*: by owner, the number of its last turn. So each other owner passes one at most once.
    """
    turns: Counter[tuple[int, int]] = Counter()
    keyed = []
    for one in sorted(waiting, key=lambda one: one.lease):
        rank = one.rank(now_ns)
        keyed.append(((rank, turns[rank, one.owner], served.get(one.owner, 0), one.lease), one))
        turns[rank, one.owner] += 1
    return [one for _, one in sorted(keyed, key=lambda pair: pair[0])]


def positions(line: Iterable[tuple[int, frozenset[str]]]) -> dict[int, int]:
    """By lease, its place among those in *line* who could take one of the same devices from it; from 1."""
    before: Counter[frozenset[str]] = Counter()
    places = {}
    for lease, devices in line:
        places[lease] = 1 + sum(n for others, n in before.items() if not others.isdisjoint(devices))
        before[devices] += 1
    return places


def outlook(
    ground: Ground,
    waiting: Waiting,
    held: Sequence[HeldSlice],
    now_ns: int,
    devices: Collection[str],
    enough: Callable[[], bool] = lambda: False,
) -> Outlook | None:
    """Where *waiting* goes on *devices* once others have ended: known ends first, then the oldest lease.

    None where waiting does not help: what is quarantined has no end. Also when *enough* says so between two
    searches, as a request can be made to be slow to place.
    """
    leaving = _leaving(held, now_ns)
    order = sorted(leaving, key=lambda lease: (leaving[lease] is None, leaving[lease] or 0, lease))

    def after(number: int) -> tuple[PlacedSlice, ...] | None:
        gone = set(order[:number])
        return ground.place(waiting, [one for one in held if one.lease not in gone], devices)

    least, most = 0, len(order)
    placed = after(most)
    if placed is None:
        return None
    while least < most:  # the fewest ends that will do
        if enough():
            return None
        middle = (least + most) // 2
        if (sooner := after(middle)) is None:
            least = middle + 1
        else:
            most, placed = middle, sooner
    ends = order[:least]
    on = frozenset(one.device for one in placed)
    pools = frozenset(one.pool for one in placed)
    there = {one.lease for one in held if one.placed.device in on or one.placed.pool in pools}
    return Outlook(
        on,
        pools,
        _needed(ground, waiting, held, on, there.intersection(ends)),
        leaving[ends[-1]] if ends else now_ns,
    )


def _leaving(held: Sequence[HeldSlice], now_ns: int) -> Mapping[int, int | None]:
    """By lease, when it ends; None where that is not known. What is quarantined may never: it is left out."""
    slices = defaultdict(list)
    for one in held:
        slices[one.lease].append(one)
    leaving: dict[int, int | None] = {}
    for lease, its in slices.items():
        states = {one.state for one in its}
        if SliceState.QUARANTINED not in states:
            leaving[lease] = now_ns if states == {SliceState.CLEANING} else its[0].ends_ns
    return leaving


def _needed(
    ground: Ground, waiting: Waiting, held: Sequence[HeldSlice], on: frozenset[str], ends: Collection[int]
) -> frozenset[int]:
    """*ends* without those who came after *waiting* and may stay."""
    earlier = frozenset(lease for lease in ends if lease < waiting.lease)
    left = [one for one in held if one.lease not in earlier]
    return earlier if ground.place(waiting, left, on) is not None else frozenset(ends)


def leaves(
    reservation: Reservation,
    ground: Ground,
    held: Sequence[HeldSlice],
    placed: Sequence[PlacedSlice],
    ends_ns: int | None,
) -> bool:
    """Whether *placed*, which ends at *ends_ns* if that is known, leaves a request that waits its start."""
    kept = reservation.outlook
    if not kept.touches(placed):
        return True
    if None not in (ends_ns, kept.starts_ns) and ends_ns <= kept.starts_ns:  # type: ignore[operator]
        return True
    still = [one for one in held if one.lease not in kept.ends]
    still += [HeldSlice(0, 0, 0, one, SliceState.HELD) for one in placed]
    return ground.place(reservation.waiting, still, kept.devices) is not None


def narrowed(inventory: Inventory, devices: Collection[str]) -> Inventory:
    """*inventory* with nothing granted on others than *devices*."""
    return replace(
        inventory,
        devices=tuple(
            device
            if device.key in devices or device.state is not DeviceState.HEALTHY
            else replace(device, state=DeviceState.DRAINING, reason="kept for who waits")
            for device in inventory.devices
        ),
    )


def unkept(inventory: Inventory, reservations: Collection[Reservation]) -> frozenset[str]:
    """The devices of which nothing is kept for anybody."""
    devices = frozenset().union(*(one.outlook.devices for one in reservations))
    pools = frozenset().union(*(one.outlook.pools for one in reservations))
    return frozenset(
        device.key for device in inventory.devices if device.key not in devices and device.pool not in pools
    )


def kept_back(harmed: Sequence[Reservation]) -> Refusal:
    """The refusal of what would delay *harmed*, each of which says until when at most."""
    devices = {key: one for one in harmed for key in sorted(one.outlook.devices)}
    first, named = harmed[0].waiting.lease, ", ".join(sorted(harmed[0].outlook.devices))
    return Refusal(
        Code.CARD_RESERVED,
        f"fits, and would delay lease {first}, which waits for {named}",
        "wait for your turn with --wait, ask for less time than it waits (--ttl), or for another device",
        tuple(
            DeviceRefusal(
                key,
                Code.CARD_RESERVED,
                f"kept for lease {one.waiting.lease}, which waits",
                (one.waiting.lease,),
                one.until_ns,
            )
            for key, one in devices.items()
        ),
    )
