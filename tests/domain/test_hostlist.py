"""Slurm's hostlists."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.domain import hostlist


def slow(words: list[list[str | list[tuple[int, int, int]]]]) -> list[str]:
    """Every name of *words*, each a list of texts and of ranges (first, count, width): all combinations."""
    names = []
    for parts in words:
        choices = []
        for part in parts:
            if isinstance(part, str):
                choices.append([part])
                continue
            choices.append(
                [str(n).rjust(width, "0") for first, more, width in part for n in range(first, first + more)]
            )
        names += ["".join(choice) for choice in product(*choices)]
    return names


def written(words: list[list[str | list[tuple[int, int, int]]]]) -> str:
    """*words* as a hostlist."""

    def one(first: int, more: int, width: int) -> str:
        start = str(first).rjust(width, "0")
        return start if more == 1 else f"{start}-{first + more - 1}"

    return ",".join(
        "".join(
            part if isinstance(part, str) else "[" + ",".join(one(*numbers) for numbers in part) + "]"
            for part in parts
        )
        for parts in words
    )


@st.composite
def numbers(draw) -> tuple[int, int, int]:
    first = draw(st.integers(0, 120))
    return first, draw(st.integers(1, 6)), draw(st.integers(len(str(first)), 4))


texts = st.text("abn-_./09", min_size=1, max_size=4)
brackets = st.lists(numbers(), min_size=1, max_size=3)
lists = st.lists(st.lists(st.one_of(texts, brackets), min_size=1, max_size=3), min_size=1, max_size=3)


@given(lists)
def test_a_list_names_what_the_slow_reading_names(words) -> None:
    """Ranges, padding, several brackets and several words: the same names in the same order."""
    assert list(hostlist.expand(written(words))) == slow(words)


@given(lists, st.data())
def test_a_name_is_found_where_it_is_listed_and_nowhere_else(words, data) -> None:
    """Finding one name agrees with listing them all, also for names that are nearly there."""
    names, text = slow(words), written(words)
    name = data.draw(st.sampled_from(names))
    assert hostlist.contains(text, name)
    for near in (name + "0", "0" + name, name[:-1], name.replace("1", "01", 1)):
        assert hostlist.contains(text, near) == (near in names)


def test_an_empty_text_names_nothing() -> None:
    """Nothing written, nothing named."""
    assert hostlist.expand("") == ()


@pytest.mark.parametrize(
    "text", ["n[1-3", "n1]", "n[3-1]", "n[a-c]", "n[]", "n1,,n2", ",n1", "n[1-2-3]", "n[1,]"]
)
def test_what_is_no_hostlist_is_refused(text) -> None:
    """An open bracket or a reversed range is an error, never a shorter list."""
    with pytest.raises(ValueError, match=r".+"):
        hostlist.expand(text)


def test_a_list_of_millions_is_refused_and_yet_searched() -> None:
    """A typing error does not fill the memory; a name in a long list is found without listing it."""
    with pytest.raises(ValueError, match="more than 65536"):
        hostlist.expand("n[0-99999999]")
    assert hostlist.contains("n[0-99999999]x[0-99999999]", "n77x123456")
