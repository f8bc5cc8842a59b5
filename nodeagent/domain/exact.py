"""The shape `exact`: the asked count, in the arrangement that works like the most CUs."""

from __future__ import annotations

from nodeagent.domain.cuset import CuSet
from nodeagent.domain.geometry import Geometry, every_nth
from nodeagent.domain.harvest import XccLayout, worst_case


def exact_size(geometry: Geometry, asked: int) -> int:
    """*asked*, rounded up to whole pairs and to one of them on every XCC."""
    return max(-(-asked // geometry.pair), geometry.xccs) * geometry.pair


def exact_set(geometry: Geometry, free: CuSet, asked: int) -> CuSet | None:
    """As many CUs of *free* as `exact_size` says; None only where no legal set of that size is free.

    Spread over the XCCs as evenly as *free* allows, then on each XCC the best of a bounded search: for every
    number of shader engines, the ones with the most room, filled alike from the lowest level up.
    """
    room = [_free_units(geometry, free, xcc) for xcc in range(geometry.xccs)]
    shares = _shares([len(units) for units in room], exact_size(geometry, asked) // geometry.pair)
    if shares is None:
        return None
    bits = 0
    for xcc, (units, share) in enumerate(zip(room, shares, strict=True)):
        for unit in _best_units(geometry.layout(xcc), units, share):
            for bit in range(unit * geometry.pair, (unit + 1) * geometry.pair):
                bits |= 1 << bit * geometry.xccs + xcc
    return CuSet(bits)


def _free_units(geometry: Geometry, free: CuSet, xcc: int) -> list[int]:
    """Units (CUs or whole WGPs) of the XCC that are free, lowest first."""
    bits = every_nth(free.bits, xcc, geometry.xccs)
    unit = (1 << geometry.pair) - 1
    return [at for at in range(geometry.layout(xcc).units) if bits >> at * geometry.pair & unit == unit]


def _shares(room: list[int], total: int) -> list[int] | None:
    """*total* units dealt over the XCCs as evenly as their *room* allows, at least one each."""
    if total < len(room) or sum(room) < total or not all(room):
        return None
    shares = [0] * len(room)
    for _ in range(total):
        poorest = min((xcc for xcc in range(len(room)) if shares[xcc] < room[xcc]), key=shares.__getitem__)
        shares[poorest] += 1
    return shares


def _best_units(xcc: XccLayout, free: list[int], count: int) -> list[int]:
    candidates = [_over_engines(xcc, free, count, engines) for engines in range(xcc.engines, 0, -1)]
    candidates.append(free[:count])
    return max(candidates, key=lambda units: worst_case(xcc, _bits_of(xcc, units)))


def _over_engines(xcc: XccLayout, free: list[int], count: int, engines: int) -> list[int]:
    """*count* units, dealt in turns over the *engines* with the most room; others only if these run out."""
    by_engine: list[list[int]] = [[] for _ in range(xcc.engines)]
    for unit in free:
        by_engine[unit % xcc.engines].append(unit)
    fair = count // engines

    def roomiest(engine: int) -> tuple[int, int, int]:
        units = by_engine[engine]
        certain = sum(1 for unit in units if unit < xcc.certain_units)
        return -min(certain, fair), -len(units), engine

    order = sorted(range(xcc.engines), key=roomiest)
    chosen: list[int] = []
    for group in (order[:engines], order[engines:]):
        turns = sorted((turn, unit) for engine in group for turn, unit in enumerate(by_engine[engine]))
        chosen += [unit for _, unit in turns[: count - len(chosen)]]
    return chosen


def _bits_of(xcc: XccLayout, units: list[int]) -> int:
    unit_bits = (1 << xcc.pair) - 1
    bits = 0
    for unit in units:
        bits |= unit_bits << unit * xcc.pair
    return bits
