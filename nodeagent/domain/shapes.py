"""Which CUs a slice gets: whole even blocks by default, the exact count on demand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from nodeagent.domain.cuset import CuSet
from nodeagent.domain.exact import exact_set, exact_size
from nodeagent.domain.geometry import Geometry
from nodeagent.domain.request import Shape


def granted_size(geometry: Geometry, asked: int, shape: Shape) -> int:
    """CUs that a request for *asked* comes to: everything, with the ragged tail, if it asks for all."""
    if asked >= geometry.cus:
        return asked
    return exact_size(geometry, asked) if shape is Shape.EXACT else even_size(geometry, asked)


def even_size(geometry: Geometry, asked: int) -> int:
    """*asked* rounded down to whole rows or, below a row, to an even number of steps; at least one step."""
    if asked >= geometry.row:
        return asked // geometry.row * geometry.row
    steps = asked // geometry.step
    return max((size for size in _even_steps(geometry) if size <= steps), default=1) * geometry.step


# A node has few geometries, and its devices are in few states: most of 63 partitions have the same answer.
@lru_cache(maxsize=8192)
def choose(geometry: Geometry, free: CuSet, asked: int, shape: Shape) -> CuSet | None:
    """The CUs of *free* for a request of *asked*, or None where no legal set of that size is free.

    Never leaves an XCC without a CU and never splits a WGP pair.
    """
    free = free & geometry.everything
    if asked > geometry.cus:
        return None
    if asked == geometry.cus:
        return free if free == geometry.everything else None
    if shape is Shape.EXACT:
        return exact_set(geometry, free, asked)
    return even_block(geometry, free, even_size(geometry, asked))


def even_block(geometry: Geometry, free: CuSet, size: int) -> CuSet | None:
    """An even block of exactly *size* CUs, a size that `even_size` gives."""
    if size >= geometry.row:
        return _whole_rows(geometry, free, size // geometry.row)
    return _steps(geometry, _rows(geometry, free), size // geometry.step)


@lru_cache(maxsize=8192)
def largest_even(geometry: Geometry, free: CuSet) -> int:
    """CUs of the largest even block that *free* has; 0 for none."""
    whole = len(_free_rows(geometry, free))
    if whole:
        return whole * geometry.row
    rows = _rows(geometry, free)
    for steps in sorted(_even_steps(geometry), reverse=True):
        if _steps(geometry, rows, steps) is not None:
            return steps * geometry.step
    return 0


def shared_set(geometry: Geometry, cu_percent: float, free: CuSet) -> CuSet | None:
    """The set that memory-only leases of a device share: *cu_percent* in whole rows, at least one."""
    return even_block(geometry, free, shared_size(geometry, cu_percent))


def shared_size(geometry: Geometry, cu_percent: float) -> int:
    asked = percent_of(geometry.cus, cu_percent)
    if geometry.rows:
        asked = max(asked, geometry.row)
    return even_size(geometry, asked)


@lru_cache(maxsize=1024)
def share_of(percent: float) -> Fraction:
    """The percentage as it was written, not its nearest binary fraction: 29 % of 100 is 29."""
    return Fraction(str(percent)) / 100


def percent_of(whole: int, percent: float) -> int:
    return int(whole * share_of(percent))


def _even_steps(geometry: Geometry) -> set[int]:
    """Step counts below a row that give every shader engine in use equally many."""
    return {
        engines * arrays
        for engines in range(1, geometry.engines + 1)
        for arrays in range(1, geometry.arrays + 1)
        if engines * arrays < geometry.engines * geometry.arrays
    } or {1}


def _whole_rows(geometry: Geometry, free: CuSet, count: int) -> CuSet | None:
    rows = _free_rows(geometry, free)
    if len(rows) < count:
        return None
    bits = 0
    for row in rows[:count]:
        bits |= row.bits
    return CuSet(bits)


def _free_rows(geometry: Geometry, free: CuSet) -> list[CuSet]:
    """What is free of rows, each a CU (or pair) of every array on every XCC, the best first.

    Whole certain rows, from the lowest; then as many as the free ends of broken ones come to, column by
    column, which is as even where every level is certain; then whole rows that harvest may have torn.
    """
    rows = _rows(geometry, free)
    certain, torn = rows[: geometry.certain_rows], rows[geometry.certain_rows :]
    columns = range(geometry.engines * geometry.arrays)
    broken = [[row for row in certain if row.free_steps[at] and not row.whole] for at in columns]
    woven = [
        CuSet.of(cu for at, row in enumerate(ends) for cu in _cus_of(geometry, row, [at]))
        for ends in zip(*broken, strict=False)
    ]
    whole, last = ([_cus_of(geometry, row, columns) for row in some if row.whole] for some in (certain, torn))
    return [*whole, *woven, *last]


@dataclass(frozen=True, slots=True)
class _Row:
    """One row, or the ragged tail, and which of its steps are free."""

    number: int
    free_steps: tuple[bool, ...]
    whole: bool  # every step of a full row: taking from it breaks a row


def _rows(geometry: Geometry, free: CuSet) -> list[_Row]:
    steps_per_row = geometry.engines * geometry.arrays
    found = []
    for number in range(-(-geometry.cus // geometry.row)):
        steps = min(steps_per_row, (geometry.cus - number * geometry.row) // geometry.step)
        free_steps = tuple(
            CuSet.span(number * geometry.row + step * geometry.step, geometry.step) <= free
            for step in range(steps)
        )
        found.append(_Row(number, free_steps, steps == steps_per_row and all(free_steps)))
    return found


def _steps(geometry: Geometry, rows: Sequence[_Row], count: int) -> CuSet | None:
    """*count* steps within one of *rows*: the best in the worst case, then where it harms a row least.

    Rows already broken go first so that whole rows stay whole, then certain ones, then the tightest fit.
    """
    best: tuple[tuple[int, bool, bool, int, int], CuSet] | None = None
    for row in rows:
        chosen = _within(geometry, row.free_steps, count)
        if chosen is None:
            continue
        cus = _cus_of(geometry, row, chosen)
        key = (
            -geometry.effective(cus),
            row.whole,
            row.number >= geometry.certain_rows,
            sum(row.free_steps) - count,
            row.number,
        )
        if best is None or key < best[0]:
            best = key, cus
    return best[1] if best else None


def _cus_of(geometry: Geometry, row: _Row, steps: Sequence[int]) -> CuSet:
    bits = 0
    for step in steps:
        bits |= CuSet.span(row.number * geometry.row + step * geometry.step, geometry.step).bits
    return CuSet(bits)


def _within(geometry: Geometry, free_steps: tuple[bool, ...], count: int) -> Sequence[int] | None:
    """*count* free steps of one row, equally many on each engine in use; the tightest run if one fits."""
    if count <= geometry.engines:
        run = _tightest_run(free_steps, count)
        if run is not None:
            return run
    for arrays in range(1, geometry.arrays + 1):
        engines, rest = divmod(count, arrays)
        if rest or engines > geometry.engines:
            continue
        able = [
            steps
            for engine in range(geometry.engines)
            if len(steps := _free_of(geometry, free_steps, engine)[:arrays]) == arrays
        ]
        if len(able) >= engines:
            return [step for steps in able[:engines] for step in steps]
    return None


def _free_of(geometry: Geometry, free_steps: tuple[bool, ...], engine: int) -> list[int]:
    return [step for step in range(engine, len(free_steps), geometry.engines) if free_steps[step]]


def _tightest_run(free_steps: tuple[bool, ...], count: int) -> range | None:
    runs = CuSet.of(step for step, free in enumerate(free_steps) if free).runs()
    fitting = [(last - first, first) for first, last in runs if last - first + 1 >= count]
    if not fitting:
        return None
    _, first = min(fitting)
    return range(first, first + count)
