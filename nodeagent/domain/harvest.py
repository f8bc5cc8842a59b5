"""The worst that unknown harvest can do to a set of CUs of one XCC.

Every way in which the lost units could lie over the arrays is tried, all at once: a set of ways is an integer
with a bit for each, and a number that differs from way to way is kept in binary digits that are such sets.
Where there are too many ways, a bound that is never too high takes their place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

MOST_PATTERNS = 20_000


@dataclass(frozen=True, slots=True)
class XccLayout:
    """One XCC: its arrays and how many units (CUs, or WGPs where *pair* is 2) are left of them."""

    units: int
    engines: int
    arrays: int  # per shader engine
    levels: int  # physical units per array
    pair: int  # mask bits per unit

    @property
    def lost(self) -> int:
        return max(0, self.engines * self.arrays * self.levels - self.units)

    @property
    def certain_units(self) -> int:
        """Lowest units whose place no harvest can shift."""
        return max(0, self.levels - self.lost) * self.engines * self.arrays


@lru_cache(maxsize=8192)
def worst_case(xcc: XccLayout, bits: int) -> int:
    """The least of (engines in use x CUs of the poorest in use) that *bits* can come to; 0 for none."""
    if not bits:
        return 0
    if not xcc.lost or bits.bit_length() <= xcc.certain_units * xcc.pair:
        return _paced(_unharvested(xcc), bits)
    ways = _ways_of(xcc)
    return harvest_bound(xcc, bits) if ways is None else ways.worst(xcc, bits)


def engine_masks(xcc: XccLayout, losses: tuple[int, ...]) -> tuple[int, ...]:
    """Per engine the mask bits that fall on it, *losses* being the units that each array lacks."""
    unit_bits, masks = (1 << xcc.pair) - 1, [0] * xcc.engines
    for unit, engine in enumerate(_engines(xcc, losses)):
        masks[engine] |= unit_bits << unit * xcc.pair
    return tuple(masks)


def _engines(xcc: XccLayout, losses: Sequence[int]) -> bytes:
    """The engine of each unit, lowest first.

    Arrays come in mask order: engine first. A device that claims more CUs than its arrays hold goes on above
    the highest level, so that every bit has a place.
    """
    found = bytearray()
    left = [xcc.levels - loss for loss in losses]
    level = 0
    while len(found) < xcc.units:
        found += bytes(
            array % xcc.engines for array, held in enumerate(left) if level < held or level >= xcc.levels
        )
        level += 1
    return bytes(found[: xcc.units])


@lru_cache(maxsize=64)
def _unharvested(xcc: XccLayout) -> tuple[int, ...]:
    """Per engine the mask bits that fall on it if the topmost units are the lost ones."""
    return engine_masks(xcc, (0,) * (xcc.engines * xcc.arrays))


def _paced(masks: tuple[int, ...], bits: int) -> int:
    counts = [count for mask in masks if (count := (bits & mask).bit_count())]
    return len(counts) * min(counts, default=0)


class _Numbers:
    """A number for each way, summed up from sets of ways; digit *i* is the set where bit *i* of it is 1."""

    __slots__ = ("digits", "every")

    def __init__(self, every: int, alike: int = 0) -> None:
        self.every = every
        self.digits = [every if alike >> at & 1 else 0 for at in range(alike.bit_length())]

    def add(self, ways: int) -> None:
        """One more in each of *ways*."""
        for at, digit in enumerate(self.digits):
            self.digits[at], ways = digit ^ ways, digit & ways
            if not ways:
                return
        if ways:
            self.digits.append(ways)

    def at_least(self, least: int) -> int:
        """The ways in which the number is *least* or more."""
        more, same = 0, self.every
        for at in range(max(len(self.digits), least.bit_length()) - 1, -1, -1):
            digit = self.digits[at] if at < len(self.digits) else 0
            if least >> at & 1:
                same &= digit
            else:
                more, same = more | same & digit, same & ~digit
        return more | same

    def least(self, among: int) -> int:
        """The least of the numbers of the ways *among*."""
        found = 0
        for at in range(len(self.digits) - 1, -1, -1):
            if low := among & ~self.digits[at]:
                among = low
            else:
                found |= 1 << at
        return found


@dataclass(frozen=True, slots=True)
class _Ways:
    """Every way the lost units can lie."""

    every: int
    falls: tuple[tuple[int, ...], ...]  # per unit and engine: the ways in which the unit falls on it
    sure: tuple[int, ...]  # per engine: the bits that fall on it in every way

    @classmethod
    def of(cls, xcc: XccLayout) -> _Ways:
        ways = sorted(
            {_engines(xcc, losses) for losses in _losses(xcc.lost, xcc.arrays * xcc.engines, xcc.levels)}
        )
        picks = [bytes(49 if engine == one else 48 for one in range(256)) for engine in range(xcc.engines)]
        certain = (1 << xcc.certain_units * xcc.pair) - 1
        return cls(
            every=(1 << len(ways)) - 1,
            falls=tuple(
                tuple(int(bytes(column).translate(pick), 2) for pick in picks)
                for column in zip(*ways, strict=True)
            ),
            sure=tuple(mask & certain for mask in _unharvested(xcc)),
        )

    def worst(self, xcc: XccLayout, bits: int) -> int:
        """What `worst_case` says."""
        counts = [self._count(xcc, bits, engine) for engine in range(xcc.engines)]
        idle = [self.every & ~count.at_least(1) for count in counts]
        in_use = _Numbers(self.every)
        for one in idle:
            in_use.add(self.every & ~one)
        worst, least, left = bits.bit_count(), 0, self.every
        while left:
            least, more = least + 1, left
            for count, none in zip(counts, idle, strict=True):
                more &= none | count.at_least(least + 1)
            if poorest := left & ~more:  # the ways in which the poorest engine in use has just *least*
                worst = min(worst, least * in_use.least(poorest))
            left = more
        return worst

    def _count(self, xcc: XccLayout, bits: int, engine: int) -> _Numbers:
        """How many of *bits* fall on *engine*."""
        count = _Numbers(self.every, (bits & self.sure[engine]).bit_count())
        for bit in range(xcc.certain_units * xcc.pair, min(bits.bit_length(), xcc.units * xcc.pair)):
            if bits >> bit & 1:
                count.add(self.falls[bit // xcc.pair][engine])
        return count


@lru_cache(maxsize=64)
def _ways_of(xcc: XccLayout) -> _Ways | None:
    """Every way the lost units can lie; None where they are too many to try."""
    if _ways(xcc.lost, xcc.engines * xcc.arrays, xcc.levels) > MOST_PATTERNS:
        return None
    return _Ways.of(xcc)


def _losses(lost: int, arrays: int, most: int) -> Iterator[tuple[int, ...]]:
    if arrays == 1:
        yield (lost,)
        return
    for first in range(max(0, lost - most * (arrays - 1)), min(lost, most) + 1):
        for rest in _losses(lost - first, arrays - 1, most):
            yield (first, *rest)


def _ways(lost: int, arrays: int, most: int) -> int:
    ways = [1] + [0] * lost
    for _ in range(arrays):
        ways = [sum(ways[max(0, total - most) : total + 1]) for total in range(lost + 1)]
    return ways[lost]


def harvest_bound(xcc: XccLayout, bits: int) -> int:
    """Never above the worst case: the certain units count, the others may all fall where they help least.

    An uncertain unit may add to an engine in use (no harm) or bring in another with a single unit.
    """
    masks = _unharvested(xcc)
    certain = bits & ((1 << xcc.certain_units * xcc.pair) - 1)
    uncertain = bits & ~certain
    used = sum(1 for mask in masks if mask & certain)
    if not used:
        return min(uncertain.bit_count(), 2 * xcc.pair)
    paced = _paced(masks, certain)
    return paced if used == xcc.engines or not uncertain else min(paced, (used + 1) * xcc.pair)
