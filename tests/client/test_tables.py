"""Tables for people and for programs."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest

from gpulease.screen import Coloured, Screen
from gpulease.tables import state, table

TITLES = ("A", "NAME", "B")
BOX = """\
┌───┬────────┬───┐
│ A │ NAME   │ B │
├───┼────────┼───┤
│ 1 │ some   │ 2 │
│ 3 │ \\x1b[m │ 4 │
└───┴────────┴───┘
"""
PLAIN = """\
A  NAME    B
1  some    2
3  \\x1b[m  4
"""
ROWS = [("1", "some", 2), (3, Coloured("\x1b[m", "red"), "4")]


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def shown(stream: Any, variables: dict[str, str], rows: Any = ROWS, shrink: Any = None) -> str:
    table(Screen(stream, variables), TITLES, rows, shrink)
    return str(stream.getvalue())


def test_a_terminal_gets_boxes_and_colours() -> None:
    """Lines around the cells, the head in bold, coloured cells in their colour, all text escaped."""
    drawn = shown(Terminal(), {"TERM": "xterm", "COLUMNS": "80"})
    assert "\x1b[1mNAME\x1b[0m" in drawn and "\x1b[31m\\x1b[m\x1b[0m" in drawn
    assert re.sub(r"\x1b\[\d+m", "", drawn) == BOX


def test_without_colours_the_box_stays() -> None:
    """NO_COLOR is about colours."""
    assert shown(Terminal(), {"TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "80"}) == BOX


@pytest.mark.parametrize(
    ("stream", "variables"),
    [(io.StringIO(), {"TERM": "xterm"}), (Terminal(), {"TERM": "dumb"}), (Terminal(), {})],
    ids=["pipe", "dumb", "no TERM"],
)
def test_programs_get_columns(stream: Any, variables: dict[str, str]) -> None:
    """Neither lines nor colours in a pipe, or on a terminal that may have neither."""
    assert shown(stream, {**variables, "COLUMNS": "80"}) == PLAIN


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["pipe", "terminal"])
def test_a_table_fits_the_screen(stream: Any) -> None:
    """The column that may shrink does, and says so."""
    rows = [("1", "x" * 60, "2")]
    drawn = shown(stream, {"TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "40"}, rows, shrink=1)
    assert {len(line) for line in drawn.splitlines()} == {40}
    assert "~" in drawn


def test_a_table_that_has_no_room_for_a_box_has_none() -> None:
    """Lines that the terminal would break are no box."""
    drawn = shown(Terminal(), {"TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "40"}, [("1", "x" * 60, "2")])
    assert not set("│─") & set(drawn)
    assert "x" * 60 in drawn


@pytest.mark.parametrize(
    ("text", "colour"), [("active", "green"), ("draining", "yellow"), ("failed", "red"), ("new", "bold")]
)
def test_states_have_colours(text: str, colour: str) -> None:
    """Well, on its way, bad; and one that this version does not know."""
    assert state(text, "why") == Coloured(f"{text}: why", colour)
