"""Sets of compute units of one device. Pure arithmetic on bit masks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class CuSet:
    """An immutable set of CU indexes of one device, held as a bit mask."""

    bits: int = 0

    def __post_init__(self) -> None:
        if self.bits < 0:
            raise ValueError("a CU set has no negative members")

    @classmethod
    def of(cls, members: Iterable[int]) -> CuSet:
        bits = 0
        for member in members:
            bits |= 1 << member
        return cls(bits)

    @classmethod
    def span(cls, first: int, count: int) -> CuSet:
        """The *count* CUs from *first* on."""
        return cls(((1 << count) - 1) << first)

    @classmethod
    def parse(cls, text: str) -> CuSet:
        """Read list syntax (``0-31,64``); ``""`` is the empty set.

        Raises:
            ValueError: the text is no list, or a range runs backwards.
        """
        bits = 0
        for item in filter(None, text.split(",")):
            low, dash, high = item.partition("-")
            first, last = int(low), int(high if dash else low)
            if last < first:
                raise ValueError(f"{item}: a range runs upwards")
            bits |= cls.span(first, last - first + 1).bits
        return cls(bits)

    def __and__(self, other: CuSet) -> CuSet:
        return CuSet(self.bits & other.bits)

    def __or__(self, other: CuSet) -> CuSet:
        return CuSet(self.bits | other.bits)

    def __sub__(self, other: CuSet) -> CuSet:
        return CuSet(self.bits & ~other.bits)

    def __contains__(self, member: int) -> bool:
        return bool(self.bits >> member & 1)

    def __len__(self) -> int:
        return self.bits.bit_count()

    def __iter__(self) -> Iterator[int]:
        for first, last in self.runs():
            yield from range(first, last + 1)

    def __le__(self, other: CuSet) -> bool:
        return not self.bits & ~other.bits

    def __str__(self) -> str:
        return _listed(self)

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield maximal runs as inclusive (first, last), lowest first."""
        bits, at = self.bits, 0
        while bits:
            skip = (bits & -bits).bit_length() - 1
            bits >>= skip
            length = (bits ^ (bits + 1)).bit_length() - 1
            yield at + skip, at + skip + length - 1
            bits >>= length
            at += skip + length


@lru_cache(maxsize=4096)
def _listed(cus: CuSet) -> str:
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in cus.runs())
