"""The worst that unknown harvest can do to a set of CUs of one XCC.

Every way in which the lost units could lie over the arrays is tried, with one bit mask per shader engine and
way made once. Where there are too many ways, a bound that is never too high takes their place.
"""

from __future__ import annotations

from collections.abc import Iterator
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
        return _paced(engine_masks(xcc, (0,) * (xcc.engines * xcc.arrays)), bits)
    patterns = _patterns(xcc)
    if patterns is None:
        return harvest_bound(xcc, bits)
    return min(_paced(masks, bits) for masks in patterns)


def engine_masks(xcc: XccLayout, losses: tuple[int, ...]) -> tuple[int, ...]:
    """Per engine the mask bits that fall on it, *losses* being the units that each array lacks.

    Arrays come in mask order: engine first. A device that claims more CUs than its arrays hold goes on above
    the highest level, so that every bit has a place.
    """
    unit_bits = (1 << xcc.pair) - 1
    masks, bit, level = [0] * xcc.engines, 0, 0
    end = xcc.units * xcc.pair
    left = [xcc.levels - loss for loss in losses]
    while bit < end:
        for array, held in enumerate(left):
            if (level < held or level >= xcc.levels) and bit < end:
                masks[array % xcc.engines] |= unit_bits << bit
                bit += xcc.pair
        level += 1
    return tuple(masks)


def _paced(masks: tuple[int, ...], bits: int) -> int:
    counts = [count for mask in masks if (count := (bits & mask).bit_count())]
    return len(counts) * min(counts, default=0)


@lru_cache(maxsize=64)
def _patterns(xcc: XccLayout) -> tuple[tuple[int, ...], ...] | None:
    """Engine masks of every way the lost units can lie; None where there are too many ways."""
    arrays = xcc.engines * xcc.arrays
    if _ways(xcc.lost, arrays, xcc.levels) > MOST_PATTERNS:
        return None
    return tuple({engine_masks(xcc, losses) for losses in _losses(xcc.lost, arrays, xcc.levels)})


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
    masks = engine_masks(xcc, (0,) * (xcc.engines * xcc.arrays))
    certain = bits & ((1 << xcc.certain_units * xcc.pair) - 1)
    uncertain = bits & ~certain
    used = sum(1 for mask in masks if mask & certain)
    if not used:
        return min(uncertain.bit_count(), 2 * xcc.pair)
    paced = _paced(masks, certain)
    return paced if used == xcc.engines or not uncertain else min(paced, (used + 1) * xcc.pair)
