"""Bits of a CU mask and the hardware they fall on.

The mapping is the kernel's (``mqd_symmetrically_map_cu_mask``, alike in Linux 6.12 to 7.3): XCC first, then
shader engine, then array, then level. Arrays that lost CUs in manufacture (harvest) are skipped at the levels
they lack, which shifts every later bit; sysfs does not say which arrays those are.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache

from nodeagent.domain.cuset import CuSet
from nodeagent.domain.harvest import XccLayout, worst_case

# Mask bits that a target's queues take together; the first pattern that matches counts. A property of the
# target, not of "gfx10 and later": gfx1250 takes single CUs (ROCm/rocm-systems#8038).
_PAIR_RULES = (
    ("gfx9??", 1),
    ("gfx10??", 2),
    ("gfx11??", 2),
    ("gfx1200", 2),
    ("gfx1201", 2),
    ("gfx1250", 1),
)


def wgp_pair(gfx: str | None, simd_per_cu: int) -> int:
    """Mask bits that must stay together on a target: 2 where a WGP is the unit, else 1.

    A target without a rule (or a kernel that does not name it) is judged by its SIMDs per CU: RDNA has two.
    """
    name = (gfx or "").casefold()
    for pattern, pair in _PAIR_RULES:
        if fnmatchcase(name, pattern):
            return pair
    return 2 if simd_per_cu == 2 else 1


@dataclass(frozen=True, slots=True)
class Geometry:
    """How the CUs of one device lie in its XCCs, shader engines and arrays.

    The XCCs of a device are assumed to have lost equally many CUs each, as every partitioned card shows.
    """

    cus: int  # active CUs = usable mask bits
    xccs: int  # XCCs in this device
    engines: int  # shader engines per XCC
    arrays: int  # shader arrays per shader engine
    array_cus: int  # physical CUs per array, harvested ones included
    pair: int  # bits that must stay together: 2 where a WGP is the unit, else 1

    @property
    def step(self) -> int:
        """Bits of one shader engine step on each XCC: the least that is even."""
        return self.xccs * self.pair

    @property
    def row(self) -> int:
        """Bits that give every array of every XCC one more CU (or pair)."""
        return self.step * self.engines * self.arrays

    @property
    def rows(self) -> int:
        """Whole aligned rows; what is left above them is the ragged tail."""
        return self.cus // self.row

    @property
    def harvested(self) -> int:
        """CUs of the silicon that the device lacks, over all XCCs."""
        return max(0, self.xccs * self.engines * self.arrays * self.array_cus - self.cus)

    @property
    def certain_rows(self) -> int:
        """Rows that are full wherever the lost CUs were: even if one array per XCC lost them all."""
        levels = self.array_cus // self.pair
        lost = -(-self.harvested // self.step)
        return max(0, min(self.rows, levels - lost))

    @property
    def everything(self) -> CuSet:
        return CuSet.span(0, self.cus)

    def effective(self, cus: CuSet) -> int:
        """CUs that a kernel works like on *cus*, in the worst case of harvest.

        XCCs x the least, over the XCCs, of (shader engines in use x CUs of the poorest in use), since work
        is dealt evenly over both. A model from driver source and papers, not a measurement. 0 where an XCC
        has no CU: its share of the work could never finish.
        """
        return _effective(self, (cus & self.everything).bits)

    def layout(self, xcc: int) -> XccLayout:
        """The XCC's own layout; mask bits of it count from 0 there."""
        bits = -(-(self.cus - xcc) // self.xccs)
        return XccLayout(
            units=-(-bits // self.pair),
            engines=self.engines,
            arrays=self.arrays,
            levels=self.array_cus // self.pair,
            pair=self.pair,
        )


@lru_cache(maxsize=8192)
def _effective(geometry: Geometry, usable: int) -> int:
    xccs = geometry.xccs
    return xccs * min(worst_case(geometry.layout(xcc), every_nth(usable, xcc, xccs)) for xcc in range(xccs))


def every_nth(bits: int, first: int, stride: int) -> int:
    """The bits first, first + stride, … of *bits*, packed together."""
    return int(bin(bits)[:1:-1][first::stride][::-1] or "0", 2)
