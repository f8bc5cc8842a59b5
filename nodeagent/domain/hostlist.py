"""Slurm's hostlists: ``n[1-4,09-12]x,login`` names several things in one word.

As `hostlist_create` in src/common/hostlist.c reads them: a range is padded to the digits of its first number,
several brackets in one word multiply, words are separated by commas.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

MOST_NAMES = 65_536  # Slurm's own MAX_RANGE: what is longer is a typing error
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_WORD = re.compile(r"(?:[^\[\],]|\[[^\[\]]*\])+")
_PART = re.compile(r"\[([^\]]*)\]|([^\[]+)")


@dataclass(frozen=True, slots=True)
class _Range:
    first: int
    last: int
    width: int

    def numbers(self) -> Iterator[str]:
        return (f"{number:0{self.width}d}" for number in range(self.first, self.last + 1))

    def holds(self, digits: str) -> bool:
        number = int(digits)
        return self.first <= number <= self.last and digits == f"{number:0{self.width}d}"


_Part = str | tuple[_Range, ...]


def expand(text: str) -> tuple[str, ...]:
    """Every name in *text*, in its order.

    Raises ValueError: a bracket or range is no such, or there are more than `MOST_NAMES`.
    """
    names: list[str] = []
    for word in _words(text):
        for name in _names(word):
            if len(names) == MOST_NAMES:
                raise ValueError(f"names more than {MOST_NAMES} things")
            names.append(name)
    return tuple(names)


def contains(text: str, name: str) -> bool:
    """Whether *name* is one of *text*'s, found without listing them all. Raises ValueError as `expand`."""
    return any(_matches(word, name) for word in _words(text))


def _words(text: str) -> list[tuple[_Part, ...]]:
    words = _WORD.findall(text)
    if ",".join(words) != text:
        raise ValueError("is no list of names: a bracket is left open, or a name between commas is missing")
    return [tuple(_part(found) for found in _PART.finditer(word)) for word in words]


def _part(found: re.Match[str]) -> _Part:
    return found[2] if found[1] is None else tuple(map(_range, found[1].split(",")))


def _range(text: str) -> _Range:
    found = _RANGE.fullmatch(text)
    if found is None:
        raise ValueError(f"[{text[:40]}] is no range of numbers")
    one = _Range(int(found[1]), int(found[2] or found[1]), len(found[1]))
    if one.last < one.first:
        raise ValueError(f"[{text[:40]}] counts down")
    return one


def _names(parts: tuple[_Part, ...]) -> Iterator[str]:
    if not parts:
        yield ""
        return
    for start in _starts(parts[0]):
        for end in _names(parts[1:]):
            yield start + end


def _starts(part: _Part) -> Iterator[str]:
    if isinstance(part, str):
        return iter((part,))
    return (number for one in part for number in one.numbers())


def _matches(parts: tuple[_Part, ...], name: str) -> bool:
    if not parts:
        return not name
    first, rest = parts[0], parts[1:]
    if isinstance(first, str):
        return name.startswith(first) and _matches(rest, name.removeprefix(first))
    digits = re.match("[0-9]{0,9}", name)
    return any(
        any(one.holds(name[:length]) for one in first) and _matches(rest, name[length:])
        for length in range(1, (digits.end() if digits else 0) + 1)
    )
