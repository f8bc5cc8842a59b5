"""The shape `exact`: the asked count, in the arrangement that works like the most CUs."""

from __future__ import annotations

from collections.abc import Sequence

from nodeagent.domain.cuset import CuSet
from nodeagent.domain.geometry import Geometry, every_nth
from nodeagent.domain.harvest import XccLayout, worst_case


def exact_size(geometry: Geometry, asked: int) -> int:
    """*asked*, rounded up to whole pairs and to one of them on every XCC."""
    return max(-(-asked // geometry.pair), geometry.xccs) * geometry.pair


def exact_set(geometry: Geometry, free: CuSet, asked: int) -> CuSet | None:
    """As many CUs of *free* as `exact_size` says; None only where no legal set of that size is free.

    The same on every XCC wherever *free* allows it: each lease that differs makes the XCCs differ for the
    next, which its poorest XCC then paces. On an XCC it is the best of a bounded search, see `_best_units`.
    """
    room = [_free_units(geometry, free, xcc) for xcc in range(geometry.xccs)]
    total = exact_size(geometry, asked) // geometry.pair
    if sum(map(len, room)) < total or not all(room):
        return None
    bits = 0
    for xcc, units in enumerate(_alike(geometry, room, total) or _apart(geometry, room, total)):
        for unit in units:
            for bit in range(unit * geometry.pair, (unit + 1) * geometry.pair):
                bits |= 1 << bit * geometry.xccs + xcc
    return CuSet(bits)


def _free_units(geometry: Geometry, free: CuSet, xcc: int) -> list[int]:
    """Units (CUs or whole WGPs) of the XCC that are free, lowest first."""
    bits = every_nth(free.bits, xcc, geometry.xccs)
    unit = (1 << geometry.pair) - 1
    return [at for at in range(geometry.layout(xcc).units) if bits >> at * geometry.pair & unit == unit]


def _alike(geometry: Geometry, room: Sequence[list[int]], total: int) -> list[list[int]] | None:
    """*total* units, the same of every XCC; those that cannot be, where they harm least.

    None where too few are free on every XCC.
    """
    share, over = divmod(total, geometry.xccs)
    common = sorted(set(room[0]).intersection(*room[1:]))
    if len(common) < share:
        return None
    xcc = geometry.layout(geometry.xccs - 1)  # where the XCCs are not alike, the last has the fewest units
    units = _best_units(xcc, common, share, share)
    chosen = [list(units) for _ in room]
    if not over:
        return chosen
    harm = {unit: -_works_like(xcc, [*units, unit]) for free in room for unit in free}
    spare = sorted(
        (harm[unit], unit in common, -unit, at)
        for at, free in enumerate(room)
        for unit in free
        if unit not in units
    )
    for _, _, down, at in spare[:over]:
        chosen[at].append(-down)
    return chosen


def _apart(geometry: Geometry, room: Sequence[list[int]], total: int) -> list[list[int]]:
    """*total* units, as many of each XCC as the room on it allows, at least one."""
    shares = _shares([len(units) for units in room], total)
    return [
        _best_units(geometry.layout(xcc), units, share, min(shares))
        for xcc, (units, share) in enumerate(zip(room, shares, strict=True))
    ]


def _shares(room: Sequence[int], total: int) -> list[int]:
    """*total* units dealt over the XCCs as evenly as their *room* allows."""
    shares = [0] * len(room)
    for _ in range(total):
        poorest = min((xcc for xcc in range(len(room)) if shares[xcc] < room[xcc]), key=shares.__getitem__)
        shares[poorest] += 1
    return shares


def _best_units(xcc: XccLayout, free: list[int], count: int, pace: int) -> list[int]:
    """*count* of *free*: work like many units, and leave free what works like many; of equals the widest.

    To look at the lease alone leaves ragged ends to all who come after it, so what is left counts too, the
    lease itself twice. More than *pace* units are of no use to it: another XCC has no more.
    """
    wide = [_over_engines(xcc, free, count, engines) for engines in range(xcc.engines, 0, -1)]

    def worth(units: list[int]) -> int:
        rest = sorted(set(free).difference(units))
        own = min(_works_like(xcc, units), pace * xcc.pair)
        return own * own * (1 + _works_like(xcc, rest))

    return max([*wide, free[:count]], key=worth)


def _over_engines(xcc: XccLayout, free: list[int], count: int, engines: int) -> list[int]:
    """*count* units: equally many on the *engines* with the most room, then what is left over.

    Of an engine those of broken rows go first. What is left over comes from the same engines; if these are
    all, from the top, where harvest makes a unit's engine uncertain: here, of all places, that does no harm.
    """
    per_row, room, sure = xcc.engines * xcc.arrays, set(free), xcc.certain_units

    def late(unit: int) -> tuple[bool, bool, int]:
        first = unit - unit % per_row
        return unit >= sure, room.issuperset(range(first, first + per_row)), unit

    by_engine: list[list[int]] = [[] for _ in range(xcc.engines)]
    for unit in sorted(free, key=late):
        by_engine[unit % xcc.engines].append(unit)

    def roomiest(engine: int) -> tuple[int, int, int]:
        units = by_engine[engine]
        return -sum(1 for unit in units if unit < sure), -len(units), engine

    order, fair = sorted(range(xcc.engines), key=roomiest), count // engines
    chosen = [unit for engine in order[:engines] for unit in by_engine[engine][:fair]]
    spare = [unit for engine in order[:engines] for unit in by_engine[engine][fair:]]
    spare.sort(reverse=engines == xcc.engines)
    others = [unit for engine in order[engines:] for unit in by_engine[engine]]
    return (chosen + spare + others)[:count]


def _works_like(xcc: XccLayout, units: list[int]) -> int:
    """CUs that a kernel on the XCC works like on *units*, in the worst case of harvest."""
    unit_bits, bits = (1 << xcc.pair) - 1, 0
    for unit in units:
        bits |= unit_bits << unit * xcc.pair
    return worst_case(xcc, bits)
