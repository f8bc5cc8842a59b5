"""Nothing that the agent repeats from others can command a terminal."""

import io
from typing import Any

import pytest

from gpulease.screen import Coloured, Screen, safe


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class Latin(io.StringIO):
    encoding = "iso-8859-1"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\nb\r", "a\\x0ab\\x0d"),
        ("\x7f", "\\x7f"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202eevil", "\\u202eevil"),
        ("\u2066\u200b", "\\u2066\\u200b"),
        ("\u2028", "\\u2028"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("grün", "grün"),
    ],
)
def test_escapes(text: str, shown: str) -> None:
    """Control, bidirectional, invisible and unpaired characters are written out."""
    assert safe(text) == shown


def test_coloured_parts_are_escaped_too() -> None:
    """A colour is ours; the text within is not."""
    stream = Terminal()
    Screen(stream, {"TERM": "xterm"}).line(Coloured("\x1b]0;x\x07", "red"))
    assert stream.getvalue() == "\x1b[31m\\x1b]0;x\\x07\x1b[0m\n"


@pytest.mark.parametrize("variables", [{"TERM": "xterm", "NO_COLOR": "1"}, {"TERM": "dumb"}, {}])
def test_no_colour_when_not_wanted(variables: dict[str, str]) -> None:
    """NO_COLOR and a terminal without colours are respected."""
    stream = Terminal()
    Screen(stream, variables).line(Coloured("x", "red"))
    assert stream.getvalue() == "x\n"


def test_no_colour_in_files() -> None:
    """Only a terminal gets colours."""
    stream: Any = io.StringIO()
    Screen(stream, {"TERM": "xterm"}).line(Coloured("x", "red"))
    assert stream.getvalue() == "x\n"


def test_ascii_fallback() -> None:
    """A locale without UTF-8 gets ASCII only."""
    stream = Latin()
    screen = Screen(stream, {})
    screen.line(f"{screen.free} {screen.times} ü")
    assert stream.getvalue() == ". x \\xfc\n"


def test_only_a_terminal_is_commanded() -> None:
    """Sequences that move a cursor do not reach files and pipes, nor a terminal that is too simple."""
    for stream, variables, told in (
        (Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}, "\x1b[H"),
        (Terminal(), {"TERM": "dumb"}, ""),
        (io.StringIO(), {"TERM": "xterm"}, ""),
    ):
        Screen(stream, variables).command("\x1b[H")
        assert stream.getvalue() == told
