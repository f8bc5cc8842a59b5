"""Even blocks and exact counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.domain.cuset import CuSet
from nodeagent.domain.geometry import Geometry
from nodeagent.domain.request import Shape
from nodeagent.domain.shapes import (
    choose,
    even_size,
    granted_size,
    largest_even,
    percent_of,
    shared_set,
)

KINDS = ["mi300x-spx", "mi300x-cpx", "mi210", "vega10", "rx7900xtx", "r9700"]
MI300X = Geometry(304, 8, 4, 1, 10, 1)


@pytest.mark.parametrize(
    ("asked", "granted"),
    [(3, 8), (8, 8), (15, 8), (24, 24), (31, 24), (32, 32), (76, 64), (152, 128), (288, 288), (304, 304)],
)
def test_even_rounds_down_to_rows_or_steps(asked, granted) -> None:
    """An MI300X gives whole rows of 32, below a row steps of 8, and never less than one step."""
    chosen = choose(MI300X, MI300X.everything, asked, Shape.EVEN)
    assert chosen is not None
    assert len(chosen) == granted == granted_size(MI300X, asked, Shape.EVEN)


def test_four_quarters_leave_forty_eight_cus_and_refuse_a_fifth() -> None:
    """Four quarters of an MI300X work like 64 each; what is left holds no fifth."""
    free = MI300X.everything
    for _ in range(4):
        chosen = choose(MI300X, free, percent_of(304, 25), Shape.EVEN)
        assert chosen is not None
        assert MI300X.effective(chosen) == len(chosen) == 64
        free -= chosen
    assert len(free) == 48
    assert choose(MI300X, free, 76, Shape.EVEN) is None
    assert largest_even(MI300X, free) == 32


def test_even_uses_the_free_ends_of_broken_rows_before_rows_that_may_be_torn() -> None:
    """With a step held in each of two rows, seven rows of an MI300X are still even for certain."""
    free = MI300X.everything - CuSet.span(0, 8) - CuSet.span(40, 8)
    chosen = choose(MI300X, free, 224, Shape.EVEN)
    assert chosen is not None
    assert MI300X.effective(chosen) == len(chosen) == 224
    assert largest_even(MI300X, free) == 256


def test_exact_breaks_no_row_where_broken_ones_will_do() -> None:
    """Four CUs of each XCC of an MI300X come from the two rows of which half is held."""
    broken = CuSet.span(96, 16) | CuSet.span(144, 16)
    chosen = choose(MI300X, CuSet.span(0, 256) - broken, 32, Shape.EXACT)
    assert chosen == CuSet.span(112, 32)


def test_exact_gives_the_count_asked_in_a_good_arrangement() -> None:
    """76 CUs of an idle MI300X work like 72, where the lowest 76 bits work like 64."""
    chosen = choose(MI300X, MI300X.everything, 76, Shape.EXACT)
    assert chosen is not None
    assert (len(chosen), MI300X.effective(chosen)) == (76, 72)


def test_exact_does_not_leave_ragged_ends() -> None:
    """42 CUs of an idle MI300X would work like 40 on one engine of each XCC, and leave 96; they leave 224."""
    chosen = choose(MI300X, MI300X.everything, 42, Shape.EXACT)
    assert chosen is not None
    assert MI300X.effective(chosen) == 32
    assert MI300X.effective(MI300X.everything - chosen) == 224


@given(levels=st.sets(st.integers(0, 37), max_size=30), share=st.integers(1, 8))
def test_exact_takes_the_same_of_every_xcc(levels, share) -> None:
    """Where the same is free on each XCC of an MI300X, and the count divides by them, they stay alike."""
    free = MI300X.everything - CuSet.of(level * 8 + xcc for level in levels for xcc in range(8))
    chosen = choose(MI300X, free, share * 8, Shape.EXACT)
    assert chosen is not None
    assert all(CuSet.span(level * 8, 8) <= chosen for level in {cu // 8 for cu in chosen})


def test_what_does_not_divide_by_the_xccs_comes_from_what_is_broken() -> None:
    """A CU more than eight each is taken where one XCC has it alone, not from a step that all have."""
    free = MI300X.everything - CuSet.span(256, 7)
    chosen = choose(MI300X, free, 65, Shape.EXACT)
    assert chosen is not None
    assert 263 in chosen


def test_exact_rounds_up_to_pairs_and_one_per_xcc(machines) -> None:
    """No XCC goes without and no WGP is split, however little is asked."""
    assert granted_size(MI300X, 1, Shape.EXACT) == 8
    assert granted_size(machines.geometries["rx7900xtx"], 3, Shape.EXACT) == 4


def test_exact_leaves_a_wgp_that_is_half_held_alone(machines) -> None:
    """The free CU of a pair whose other one is held is nobody's: its WGP would run both leases' waves."""
    geometry = machines.geometries["rx7900xtx"]
    free = geometry.everything - CuSet.of([1, 6])
    chosen = choose(geometry, free, geometry.cus - 4, Shape.EXACT)
    assert chosen == geometry.everything - CuSet.of([0, 1, 6, 7])
    assert choose(geometry, free, geometry.cus - 3, Shape.EXACT) is None


@pytest.mark.parametrize("kind", KINDS)
def test_all_is_all_or_nothing(machines, kind) -> None:
    """A request for every CU takes the ragged tail too, and fits only an idle device."""
    geometry = machines.geometries[kind]
    assert choose(geometry, geometry.everything, geometry.cus, Shape.EVEN) == geometry.everything
    assert choose(geometry, geometry.everything - CuSet.span(0, 1), geometry.cus, Shape.EVEN) is None
    assert choose(geometry, geometry.everything, geometry.cus + 1, Shape.EXACT) is None


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_every_even_set_on_certain_rows_is_perfectly_even(machines, kind, data) -> None:
    """An even set within the certain rows works like as many CUs as it has."""
    geometry = machines.geometries[kind]
    certain = CuSet.span(0, geometry.certain_rows * geometry.row)
    taken = data.draw(st.sets(st.integers(0, len(certain) // geometry.step - 1), max_size=12))
    free = certain - CuSet.of(bit for step in taken for bit in _step(geometry, step))
    asked = data.draw(st.integers(1, geometry.cus - 1))
    chosen = choose(geometry, free, asked, Shape.EVEN)
    if chosen is not None:
        assert geometry.effective(chosen) == len(chosen) == even_size(geometry, asked)
        assert chosen <= free


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_exact_never_fails_where_a_legal_set_is_free(machines, kind, data) -> None:
    """On any fragmented device exact finds its count, with a CU on every XCC and pairs whole."""
    geometry = machines.geometries[kind]
    taken = data.draw(st.sets(st.integers(0, geometry.cus // geometry.pair - 1), max_size=60))
    free = geometry.everything - CuSet.of(
        unit * geometry.pair + bit for unit in taken for bit in range(geometry.pair)
    )
    asked = data.draw(st.integers(1, geometry.cus - 1))
    chosen = choose(geometry, free, asked, Shape.EXACT)
    size = granted_size(geometry, asked, Shape.EXACT)
    legal = size <= len(free) and all(
        any(bit % geometry.xccs == x for bit in free) for x in range(geometry.xccs)
    )
    assert (chosen is not None) == legal
    if chosen is not None:
        assert len(chosen) == size
        assert chosen <= free
        assert geometry.effective(chosen) > 0
        assert _pairs_whole(geometry, chosen)


@pytest.mark.parametrize("kind", KINDS)
def test_an_idle_device_divides_into_single_steps(machines, kind) -> None:
    """Steps fill a device to the last whole one, and each puts a CU on every XCC."""
    geometry, free, count = machines.geometries[kind], machines.geometries[kind].everything, 0
    while (chosen := choose(geometry, free, 1, Shape.EVEN)) is not None:
        assert geometry.effective(chosen) == len(chosen) == geometry.step
        assert _pairs_whole(geometry, chosen)
        free -= chosen
        count += 1
    assert count == geometry.cus // geometry.step


def test_small_sets_leave_whole_rows_whole() -> None:
    """Two small leases never break two rows: the second goes where the first has been."""
    first = choose(MI300X, MI300X.everything, 8, Shape.EVEN)
    assert first is not None
    second = choose(MI300X, MI300X.everything - first, 8, Shape.EVEN)
    assert second is not None
    assert largest_even(MI300X, MI300X.everything - first - second) == 288


def test_steps_of_an_array_pair_stay_even(machines) -> None:
    """Above one step per engine a sub-row block takes both arrays of fewer engines."""
    geometry = machines.geometries["rx7900xtx"]
    chosen = choose(geometry, geometry.everything, 17, Shape.EVEN)
    assert chosen is not None
    assert (len(chosen), geometry.effective(chosen)) == (16, 16)


@pytest.mark.parametrize(
    ("kind", "count"),
    [("mi300x-spx", 64), ("mi300x-cpx", 8), ("mi210", 24), ("rx7900xtx", 24), ("r9700", 16), ("vega10", 16)],
)
def test_the_shared_set_is_a_quarter_in_whole_rows(machines, kind, count) -> None:
    """A quarter by default, in whole rows, at least one."""
    geometry = machines.geometries[kind]
    chosen = shared_set(geometry, 25, geometry.everything)
    assert chosen is not None
    assert len(chosen) == count
    assert len(shared_set(geometry, 1, geometry.everything) or ()) == geometry.row


def test_percentages_are_read_as_written() -> None:
    """29 % of 100 is 29, though 0.29 x 100 is a little less in binary."""
    assert percent_of(100, 29) == 29
    assert percent_of(304, 25) == 76
    assert percent_of(1000, 0.1) == 1


def _step(geometry: Geometry, step: int) -> range:
    return range(step * geometry.step, (step + 1) * geometry.step)


def _pairs_whole(geometry: Geometry, cus: CuSet) -> bool:
    return all((bit ^ 1) in cus for bit in cus) if geometry.pair == 2 else True
