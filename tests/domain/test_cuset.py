"""CU sets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.domain.cuset import CuSet

members = st.sets(st.integers(0, 400))


@given(members, members)
def test_a_cu_set_is_a_set(one, other) -> None:
    """Every operation gives what Python's own set gives."""
    left, right = CuSet.of(one), CuSet.of(other)
    assert set(left | right) == one | other
    assert set(left & right) == one & other
    assert set(left - right) == one - other
    assert (left <= right) == (one <= other)
    assert len(left) == len(one)


@given(members)
def test_list_syntax_reads_back(one) -> None:
    """What a set prints, it parses."""
    assert CuSet.parse(str(CuSet.of(one))) == CuSet.of(one)


@pytest.mark.parametrize("text", ["3-1", "a", "1-", "-1", "1-2-3"])
def test_what_is_no_list_is_refused(text) -> None:
    """A reversed range or a stray character is an error, never an empty set."""
    with pytest.raises(ValueError, match=r".+"):
        CuSet.parse(text)


def test_a_negative_mask_is_refused() -> None:
    """A set has no negative members."""
    with pytest.raises(ValueError, match="negative"):
        CuSet(-1)
