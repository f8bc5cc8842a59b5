"""What a shard is worth."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.domain.lease import HeldSlice, SliceState
from nodeagent.domain.placement import place
from nodeagent.domain.request import Request
from nodeagent.domain.shapes import share_of
from nodeagent.domain.shards import asked, best, worth

# Shards, CUs of each, CUs in none.
CHOSEN = {
    "mi300x-spx": (8, 32, 48),
    "mi300x-cpx": (8, 4, 6),
    "mi210": (6, 16, 8),
    "vega10": (8, 8, 0),
    "rx7900xtx": (4, 24, 0),
    "r9700": (4, 16, 0),
}


def device(machines, kind: str):
    slots = 8 if kind in ("rx7900xtx", "r9700") else 24
    return machines.device(kind, queue_slots=slots)


@pytest.mark.parametrize("kind", CHOSEN)
def test_the_choice_for_each_machine(machines, kind) -> None:
    """The number that suits a GPU best, what a shard is then, and what no shard can use."""
    one = device(machines, kind)
    part = best(one, one.geometry)
    assert (part.shards, part.cus, part.spare_cus) == CHOSEN[kind]
    assert part.fits == part.shards
    assert part.queue_slots >= 2


def test_halves_of_rows_are_no_shards(machines) -> None:
    """An R9700 in eight would waste nothing, but free halves of several rows make no slice of a row."""
    one = machines.device("r9700", queue_slots=24)
    eight = worth(one, one.geometry, 8)
    assert (eight.fits, eight.spare_cus, eight.whole_rows) == (8, 0, False)
    assert best(one, one.geometry).shards == 4


def test_eight_rows_of_an_mi300x_are_sure_and_nine_are_not(machines) -> None:
    """Nine shards leave fewer CUs over, but the ninth may lie where CUs were lost: they are not alike."""
    one = device(machines, "mi300x-spx")
    eight, nine = (worth(one, one.geometry, shards) for shards in (8, 9))
    assert nine.spare_cus < eight.spare_cus
    assert eight.effective_cus == eight.cus
    assert nine.effective_cus < nine.cus


def test_what_does_not_fit_at_once_is_counted(machines) -> None:
    """More shards than hardware queues, or than even blocks, cannot all be granted."""
    one = device(machines, "mi300x-spx")
    assert worth(one, one.geometry, 12).fits == 9
    small = replace(one, queue_slots=4)
    assert worth(small, one.geometry, 8).fits == 4


@given(st.integers(1, 64), st.integers(1, 64))
def test_a_share_is_never_less_than_it_says(count, shards) -> None:
    """A hair less would round a whole row away; a hair more is less than a byte of any GPU."""
    count = min(count, shards)
    share = share_of(asked(count, shards).cu_percent or 0)
    assert 0 <= share - Fraction(count, shards) < Fraction(1, 1 << 45)
    assert share <= 1


@pytest.mark.parametrize("kind", CHOSEN)
@given(data=st.data())
def test_whatever_jobs_came_and_went_free_shards_are_granted(machines, kind, data) -> None:
    """Slurm counts shards and knows nothing of CUs: what it gives out must fit, in any order of ends."""
    one = device(machines, kind)
    node = machines.of([one])
    shards = CHOSEN[kind][0]
    jobs: list[tuple[int, HeldSlice]] = []
    for number in range(1, 25):
        free = shards - sum(count for count, _ in jobs)
        if jobs and (not free or data.draw(st.booleans())):
            jobs.pop(data.draw(st.integers(0, len(jobs) - 1)))
            continue
        count = data.draw(st.integers(1, free))
        placed = place(node, [held for _, held in jobs], Request((asked(count, shards),)))
        assert isinstance(placed, tuple), placed
        jobs.append((count, HeldSlice(number, number, 1000, placed[0], SliceState.HELD)))
