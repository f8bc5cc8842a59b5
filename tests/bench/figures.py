"""What the benchmarks measure: figures, the turns they are measured in, and what comes of those.

A subject measures some figures together. It yields turns: in each a thing and its floor (or peer) are
measured one after the other, so that whatever else the machine does falls on both, and their ratio is
that of one moment. What stands in a report is the median of those ratios, not a ratio of two medians.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Target:
    """What is meant: at most so much, as a value, as a ratio to what is beside it, or above that."""

    of: str  # "value", "ratio" or "above"
    most: float

    def text(self, unit: str) -> str:
        if self.of == "ratio":
            return f"≤ {self.most:g} ×"
        return f"≤ {self.most:g} {unit}".rstrip() + (" above" if self.of == "above" else "")


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the report. *name* is what `run.py` takes to measure it alone."""

    name: str
    says: str
    unit: str
    beside: str = ""  # the floor or peer, measured in the same turns
    target: Target | None = None
    guarded: bool = False  # whether `make bench-check` holds its ratio


@dataclass(frozen=True, slots=True)
class Taken:
    """What one turn took of one figure: one measure or many, in the figure's unit."""

    values: Sequence[float]
    beside: Sequence[float] = ()


Turn = Mapping[str, Taken]


def nothing_missing() -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class Subject:
    """Figures that are measured together. *turns* yields without end, and cleans up when it is closed."""

    title: str
    figures: tuple[Figure, ...]
    turns: Callable[[], Iterator[Turn]]
    count: int  # of turns in a report
    warm: int = 1  # turns before those, which are not counted
    quick: int = 3  # turns of a quick run
    missing: Callable[[], str | None] = nothing_missing  # what this machine lacks for it


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle of *n* measures, and what a tenth of them are below and above."""

    median: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, measures: Sequence[float]) -> Spread:
        ordered = sorted(measures)
        last = len(ordered) - 1
        low, high = (ordered[round(last * share)] for share in (0.1, 0.9))
        return cls(median(ordered), low, high, len(ordered))


@dataclass(frozen=True, slots=True)
class Result:
    """A figure, measured."""

    figure: Figure
    value: Spread
    beside: Spread | None
    ratio: float | None  # median of the turns' ratios
    above: float | None  # median of the turns' differences

    @classmethod
    def of(cls, figure: Figure, turns: Sequence[Taken]) -> Result:
        """What *turns*, one at least, came to."""
        pairs = [(median(one.values), median(one.beside)) for one in turns if one.beside]
        ratios = [value / beside for value, beside in pairs if beside]
        return cls(
            figure,
            Spread.of([value for one in turns for value in one.values]),
            Spread.of([value for one in turns for value in one.beside]) if pairs else None,
            median(ratios) if ratios else None,
            median(value - beside for value, beside in pairs) if pairs else None,
        )

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None where there is none, or nothing to tell it by."""
        target = self.figure.target
        if target is None:
            return None
        found = {"value": self.value.median, "ratio": self.ratio, "above": self.above}[target.of]
        return None if found is None else found <= target.most


def quantile(measures: Sequence[float], share: float) -> float:
    """The measure that *share* of all are below."""
    ordered = sorted(measures)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def document(result: Result) -> dict[str, Any]:
    """The result as JSON values."""
    figure = result.figure

    def spread(one: Spread | None) -> dict[str, Any] | None:
        if one is None:
            return None
        low, middle, high = (rounded(value) for value in (one.low, one.median, one.high))
        return {"median": middle, "p10": low, "p90": high, "n": one.n}

    return {
        "name": figure.name,
        "says": figure.says,
        "unit": figure.unit,
        "measured": spread(result.value),
        "beside": figure.beside or None,
        "its": spread(result.beside),
        "ratio": None if result.ratio is None else rounded(result.ratio),
        "above": None if result.above is None else rounded(result.above),
        "target": None if figure.target is None else figure.target.text(figure.unit),
        "met": result.met,
        "command": f"tests/bench/run.py {figure.name}",
    }


def rounded(value: float) -> float:
    """Four digits: more are not measured."""
    return float(f"{value:.4g}")
