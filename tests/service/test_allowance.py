"""How long one user's waiting requests keep devices from others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.service.allowance import Allowance

MOST = 100
steps = st.lists(st.tuples(st.integers(0, 300), st.frozensets(st.integers(1, 3))), max_size=60)


@given(steps=steps)
def test_nobody_keeps_more_than_half(steps) -> None:
    """Over any time, an owner keeps devices for at most half of it and once what it may on end."""
    allowance, now = Allowance(MOST), 0
    kept: dict[int, int] = {}
    for passed, wishes in steps:
        allowance.pass_time(now)
        may = {owner: min(passed, allowance.left_ns(owner)) for owner in wishes}
        allowance.keep({owner for owner, left in may.items() if left})
        longest = max(may.values(), default=0)
        if 0 < longest < passed:  # looks come often: what runs out is seen when it does
            passed = min(left for left in may.values() if left)
            may = {owner: min(left, passed) for owner, left in may.items()}
        for owner, left in may.items():
            kept[owner] = kept.get(owner, 0) + left
        now += passed
    assert all(one <= now / 2 + MOST for one in kept.values())


def test_who_used_all_up_rests_until_all_is_back() -> None:
    """A rest is not cut short for a moment more."""
    allowance = Allowance(MOST)
    allowance.pass_time(0)
    allowance.keep({1})
    allowance.pass_time(MOST)
    allowance.keep(set())
    allowance.pass_time(2 * MOST - 1)
    assert allowance.left_ns(1) == 0
    allowance.pass_time(2 * MOST)
    assert allowance.left_ns(1) == MOST
    assert allowance.left_ns(2) == MOST
