"""HSA_CU_MASK, written and read as ROCr reads it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.domain.cumask import format_mask, parse_mask
from nodeagent.domain.cuset import CuSet

cu_sets = st.sets(st.integers(0, 303), min_size=1).map(CuSet.of)


@given(st.lists(cu_sets, min_size=1, max_size=8))
def test_what_is_written_reads_back(sets) -> None:
    """Every mask that is written gives the same sets when ROCr reads it."""
    read = parse_mask(format_mask(sets), gpus=len(sets), cus=304)
    assert (dict(read.sets), read.error, read.dropped) == (dict(enumerate(sets)), None, ())


def test_a_mask_lists_gpus_in_order() -> None:
    """One set per GPU; a GPU without a set is left out and so unrestricted."""
    assert format_mask([CuSet.parse("0-31"), CuSet(), CuSet.parse("1,3-4")]) == "0:0-31;2:1,3-4"


@pytest.mark.parametrize(
    ("text", "sets"),
    [
        ("0:0-3", {0: "0-3"}),
        (" 0 : 0 - 3 ;\t1:7\n", {0: "0-3", 1: "7"}),
        ("0,1:5", {0: "5", 1: "5"}),
        ("0-1:0XfF", {0: "0-7", 1: "0-7"}),
        ("0:0x100000000000000000", {0: "68"}),
        ("0:5;", {0: "5"}),
        ("0:5,", {0: "5"}),
        ("0:-3", {0: "0-3"}),
        ("0:+3", {0: "3"}),
        ("0:5-", {0: "5"}),
        ("2:5", {2: "5"}),
        ("0:4294967297", {0: "1"}),
        ("", {}),
    ],
)
def test_a_good_mask_is_read(text, sets) -> None:
    """Space goes, case does not matter, and what strtoul takes ROCr takes, one id too many included."""
    read = parse_mask(text, gpus=2, cus=304)
    assert ({gpu: str(cus) for gpu, cus in read.sets.items()}, read.error) == (sets, None)


@pytest.mark.parametrize(
    "bad",
    [
        "1:3-1",
        "1:3,3",
        "1:1-3,2",
        "1:x",
        "1",
        "1:",
        ":1",
        "1:0x0",
        "1:0x",
        "1:0xg",
        "1:1x2",
        "1:2:3",
        "1:1--2",
        "0:7",
        "1:,1",
        "a:1",
        "1:400",
        "9:1",
        "1:0x1_0",
        "1:٣",
        ";1:1",
    ],
)
def test_an_error_ends_the_reading_and_earlier_sets_stay(bad) -> None:
    """The first bad set and every later one are without effect; ROCr says nothing of it."""
    read = parse_mask(f"0:0-3;{bad};2:1", gpus=3, cus=304)
    assert dict(read.sets) == {0: CuSet.parse("0-3")}
    assert read.error


def test_ids_out_of_range_are_dropped_in_silence() -> None:
    """CUs above the count vanish from a set that keeps others, and so do GPUs."""
    read = parse_mask("0,9:5,300-500", gpus=1, cus=304)
    assert dict(read.sets) == {0: CuSet.parse("5,300-304")}
    assert read.dropped == (500, 9)


def test_hexadecimal_is_trimmed_to_the_words_of_the_device() -> None:
    """Bits above the last 32-bit word of the device's CUs are cut off."""
    read = parse_mask("0:0x" + "f" * 40, gpus=1, cus=38)
    assert dict(read.sets) == {0: CuSet.span(0, 64)}


@given(st.text(alphabet="0123456789xXaf:;,-+ ", max_size=30))
def test_any_text_is_read_without_a_fault(text) -> None:
    """No text makes the reader raise, and what it keeps is never empty."""
    assert all(parse_mask(text, gpus=2, cus=64).sets.values())
