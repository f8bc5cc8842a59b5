"""Text for terminals. Nothing reaches one but through `Screen`, which escapes all that it did not draw."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional, TextIO, Union

_COLOURS = {"red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35, "cyan": 36, "dim": 2, "bold": 1}
# Controls, invisible formatting (bidirectional overrides), surrogates, private use, line separators.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def safe(text: object) -> str:
    """*text* with everything that could command a terminal, or reorder a line, written out as ``\\x1b``."""
    plain = str(text)
    if plain.isascii() and plain.isprintable():
        return plain
    return "".join(_escaped(one) if unicodedata.category(one) in _UNSAFE else one for one in plain)


def _escaped(one: str) -> str:
    code = ord(one)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


@dataclass(frozen=True)
class Coloured:
    """A part of a line in one of our colours."""

    text: str
    colour: str


Part = Union[str, Coloured]


class Screen:
    """One output stream: escapes, and colours only where that is wanted."""

    def __init__(self, stream: TextIO, environment: Optional[Mapping[str, str]] = None) -> None:
        variables = os.environ if environment is None else environment
        self._stream = stream
        self.unicode = (stream.encoding or "ascii").lower().replace("-", "") == "utf8"
        self.terminal = stream.isatty() and variables.get("TERM", "dumb") != "dumb"
        self.colour = self.terminal and not variables.get("NO_COLOR")
        self.boxes = self.terminal and self.unicode
        self.columns = _columns(variables)

    @property
    def free(self) -> str:
        """The cell of a CU that nobody has."""
        return "·" if self.unicode else "."

    @property
    def times(self) -> str:
        return "×" if self.unicode else "x"

    def line(self, *parts: Part) -> None:
        self._stream.write("".join(self._shown(part) for part in parts).rstrip(" ") + "\n")

    def flush(self) -> None:
        self._stream.flush()

    def command(self, *sequences: str) -> None:
        """Command the terminal itself, in words of our own: see `gpulease.terminal`. Elsewhere nothing."""
        if self.terminal:
            self._stream.write("".join(sequences))

    def sheet(self, stream: TextIO, columns: int) -> Screen:
        """Another stream that is shown here in the end, so with the same colours and signs."""
        other = Screen(stream, {})
        other.unicode, other.terminal, other.columns = self.unicode, self.terminal, columns
        other.colour, other.boxes = self.colour, self.boxes
        return other

    def _shown(self, part: Part) -> str:
        text = safe(part.text if isinstance(part, Coloured) else part)
        if not self.unicode:
            text = text.encode("ascii", "backslashreplace").decode("ascii")
        if isinstance(part, Coloured) and self.colour and text:
            return f"\x1b[{_COLOURS[part.colour]}m{text}\x1b[0m"
        return text


def _columns(variables: Mapping[str, str]) -> int:
    given = variables.get("COLUMNS", "")
    if given.isdigit() and int(given) > 0:
        return max(int(given), 40)
    try:
        return max(os.get_terminal_size(1).columns, 40)
    except OSError:
        return 80
