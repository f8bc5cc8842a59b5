"""Mask bits, the hardware under them and what a set of them is worth."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.domain.cuset import CuSet
from nodeagent.domain.geometry import Geometry, every_nth, wgp_pair
from nodeagent.domain.harvest import XccLayout, engine_masks, harvest_bound, worst_case

MI300X = Geometry(304, 8, 4, 1, 10, 1)


@pytest.mark.parametrize(
    ("cus", "effective"),
    [
        (CuSet.parse("0-31"), 32),
        (CuSet.parse("0-63"), 64),
        (CuSet.parse("0-75"), 64),
        (CuSet.parse("0-127"), 128),
        (CuSet.parse("0-151"), 128),
        (CuSet.parse("0-37"), 32),
        (CuSet.of(range(0, 304, 8)), 0),
        (CuSet.parse("256-287"), 24),
        (CuSet(), 0),
    ],
)
def test_a_set_of_an_mi300x_works_like_so_many_cus(cus: CuSet, effective: int) -> None:
    """A set is paced by its poorest engine on its poorest XCC, and is worth nothing with an XCC left out."""
    assert MI300X.effective(cus) == effective


@pytest.mark.parametrize("levels", [15, 16])
def test_an_engine_packed_set_with_one_cu_elsewhere_works_like_two(levels: int) -> None:
    """Fifteen CUs of one engine and one of another are paced by the one (MI50, with and without harvest)."""
    packed = CuSet.of([*range(0, 60, 4), 1])
    assert Geometry(60, 1, 4, 1, levels, 1).effective(packed) == 2


@pytest.mark.parametrize(
    ("kind", "row", "rows", "step", "harvested", "certain"),
    [
        ("mi300x-spx", 32, 9, 8, 16, 8),
        ("mi300x-cpx", 4, 9, 1, 2, 8),
        ("mi210", 8, 13, 1, 8, 6),
        ("vega10", 4, 16, 1, 0, 16),
        ("rx7900xtx", 24, 4, 2, 0, 4),
        ("r9700", 16, 4, 2, 0, 4),
    ],
)
def test_rows_follow_from_the_counts(machines, kind, row, rows, step, harvested, certain) -> None:
    """Rows, steps and the rows that no harvest can break follow from what sysfs says."""
    shape = machines.geometries[kind]
    got = (shape.row, shape.rows, shape.step, shape.harvested, shape.certain_rows)
    assert got == (row, rows, step, harvested, certain)


@pytest.mark.parametrize(
    ("kind", "bit", "place"),
    [
        ("mi300x-spx", 0, (0, 0, 0, 0)),
        ("mi300x-spx", 9, (1, 1, 0, 0)),
        ("mi300x-spx", 31, (7, 3, 0, 0)),
        ("mi300x-spx", 32, (0, 0, 0, 1)),
        ("rx7900xtx", 1, (0, 0, 0, 0)),
        ("rx7900xtx", 2, (0, 1, 0, 0)),
        ("rx7900xtx", 12, (0, 0, 1, 0)),
        ("rx7900xtx", 24, (0, 0, 0, 1)),
    ],
)
def test_bits_run_over_xccs_engines_arrays_and_levels(machines, kind, bit, place) -> None:
    """A bit's place is the kernel's: XCC, engine, array, level, in WGPs where those are the unit."""
    assert place_of(machines.geometries[kind], bit) == place


def test_a_harvested_array_is_skipped_and_shifts_later_bits() -> None:
    """Where an array lacks a level the next bit falls on the array after it."""
    two_engines = XccLayout(units=5, engines=2, arrays=1, levels=3, pair=1)
    assert engine_masks(two_engines, (1, 0)) == (0b00101, 0b11010)
    assert engine_masks(two_engines, (0, 1)) == (0b10101, 0b01010)


def test_an_uneven_harvest_counts_per_engine_over_its_arrays() -> None:
    """The arrays of one engine are added up before the engines are compared."""
    layout = XccLayout(units=7, engines=2, arrays=2, levels=2, pair=1)
    masks = engine_masks(layout, (1, 0, 0, 0))
    assert [mask.bit_count() for mask in masks] == [3, 4]
    assert worst_case(layout, 0b1111111) == 6


def test_too_many_harvest_patterns_give_a_bound_that_is_never_too_high() -> None:
    """A geometry with more patterns than are tried answers at once, and modestly."""
    wide = XccLayout(units=200, engines=16, arrays=2, levels=8, pair=1)
    assert worst_case(wide, (1 << 200) - 1) <= 200
    assert worst_case(wide, 0b1) == 1
    assert worst_case(wide, 0b111) == 2


def test_more_cus_than_arrays_hold_still_have_a_place() -> None:
    """A garbled CU count above the arrays' own makes no fault: its bits go on above the top level."""
    assert Geometry(50, 1, 4, 1, 10, 1).effective(CuSet.span(0, 50)) == 48


@pytest.mark.parametrize(
    ("gfx", "simd_per_cu", "pair"),
    [
        ("gfx906", 4, 1),
        ("gfx90a", 4, 1),
        ("gfx942", 4, 1),
        ("gfx950", 4, 1),
        ("gfx1030", 2, 2),
        ("gfx1100", 2, 2),
        ("gfx1151", 2, 2),
        ("gfx1200", 2, 2),
        ("gfx1201", 2, 2),
        ("gfx1250", 2, 1),
        ("gfx1300", 2, 2),
        ("gfx1300", 4, 1),
        (None, 4, 1),
        (None, 2, 2),
    ],
)
def test_wgp_pairs_are_a_property_of_the_target(gfx, simd_per_cu, pair) -> None:
    """gfx1250 takes single CUs though its major version is above 10 (ROCm/rocm-systems#8038)."""
    assert wgp_pair(gfx, simd_per_cu) == pair


@given(
    engines=st.integers(1, 3),
    arrays=st.integers(1, 2),
    levels=st.integers(1, 3),
    pair=st.integers(1, 2),
    data=st.data(),
)
def test_the_bound_and_the_shortcut_never_exceed_the_worst_pattern(
    engines, arrays, levels, pair, data
) -> None:
    """Of every harvest there can be the worst is found exactly, and the bound is not above it."""
    physical = engines * arrays * levels
    lost = data.draw(st.integers(0, physical - 1))
    layout = XccLayout(physical - lost, engines, arrays, levels, pair)
    units = data.draw(st.sets(st.integers(0, layout.units - 1), min_size=1))
    bits = sum(((1 << pair) - 1) << unit * pair for unit in units)
    worst = min(
        paced(engine_masks(layout, losses), bits)
        for losses in product(range(levels + 1), repeat=engines * arrays)
        if sum(losses) == lost
    )
    assert worst_case(layout, bits) == worst
    assert harvest_bound(layout, bits) <= worst


@pytest.mark.parametrize(
    "layout", [XccLayout(7, 3, 1, 3, 1), XccLayout(6, 2, 2, 2, 1), XccLayout(4, 3, 1, 2, 2)]
)
def test_every_set_of_a_small_xcc_comes_to_its_worst_harvest(layout) -> None:
    """No way in which the lost units can lie is passed over: each is the worst for some set."""
    ways = [
        engine_masks(layout, losses)
        for losses in product(range(layout.levels + 1), repeat=layout.engines * layout.arrays)
        if sum(losses) == layout.lost
    ]
    for bits in range(1, 1 << layout.units * layout.pair):
        assert worst_case(layout, bits) == min(paced(masks, bits) for masks in ways)


def place_of(geometry: Geometry, bit: int) -> tuple[int, int, int, int]:
    """XCC, engine, array and level of *bit* with nothing harvested, told by the masks of single arrays."""
    (xcc,) = (xcc for xcc in range(geometry.xccs) if every_nth(1 << bit, xcc, geometry.xccs))
    own = every_nth(1 << bit, xcc, geometry.xccs)
    layout, none_lost = geometry.layout(xcc), (0,) * (geometry.engines * geometry.arrays)
    by_array = engine_masks(replace(layout, engines=len(none_lost), arrays=1), none_lost)
    (at,) = (at for at, mask in enumerate(by_array) if mask & own)
    array, engine = divmod(at, geometry.engines)
    assert engine_masks(layout, none_lost)[engine] & own
    return xcc, engine, array, (by_array[at] & (own - 1)).bit_count() // geometry.pair


def paced(masks: tuple[int, ...], bits: int) -> int:
    counts = [(mask & bits).bit_count() for mask in masks if mask & bits]
    return len(counts) * min(counts)
