"""The lines of Slurm's configuration files, as src/common/parse_config.c reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nodeagent.domain import hostlist
from nodeagent.domain.errors import InvalidField

_COMMENT = re.compile(r"(?<!\\)#.*")
_CONTINUED = re.compile(r"(?<!\\)((?:\\\\)*)\\\s*$")
_INCLUDE = re.compile(r"\s*include\s+(\S+)\s*", re.IGNORECASE)
_FIELD = re.compile(r'\s*([A-Za-z0-9_.]+)\s*[-*+/]?=\s*(?:"([^"]*)"|(\S+))(?=\s|$)')
_SUFFIXES = {suffix: 10 * (at + 1) for at, suffix in enumerate("KMGTP")}


@dataclass(frozen=True, slots=True)
class Line:
    """One line, continued ones joined; keys in lower case, as Slurm does not tell them apart."""

    where: str  # "/etc/slurm/gres.conf:3"
    fields: Mapping[str, str]
    rest: str = ""  # what is no KEY=VALUE

    def get(self, key: str) -> str | None:
        return self.fields.get(key.lower())

    def wrong(self, key: str, why: str) -> InvalidField:
        """The fault that names file, line and field."""
        return InvalidField(f"{self.where}: {key}", why)

    def names(self, key: str) -> tuple[str, ...]:
        """Every name of the hostlist *key*; none where it is not given. Raises InvalidField."""
        try:
            return hostlist.expand(self.get(key) or "")
        except ValueError as wrong:
            raise self.wrong(key, str(wrong)) from None

    def about(self, node: str) -> bool:
        """Whether it is for *node*: its NodeName says so, or it has none. Raises InvalidField."""
        nodes = self.get("NodeName")
        try:
            return nodes is None or hostlist.contains(nodes, node)
        except ValueError as wrong:
            raise self.wrong("NodeName", str(wrong)) from None

    def count(self, key: str) -> int | None:
        """A count with Slurm's suffixes, powers of 1024; None where it is not given. Raises InvalidField."""
        text = self.get(key)
        return None if text is None else self.counted(key, text)

    def counted(self, key: str, text: str) -> int:
        """*text*, part of *key*, as a count. Raises InvalidField."""
        found = re.fullmatch(r"([0-9]{1,15})([KMGTP]?)", text, re.IGNORECASE)
        if found is None:
            raise self.wrong(key, f"{text[:40]!r} is no count; write a number like 8")
        return int(found[1]) << _SUFFIXES.get(found[2].upper(), 0)


def logical(text: str) -> Iterator[tuple[int, str]]:
    """Number and text of every line that says something: comments gone, continued lines joined."""
    begun, start = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        piece = _COMMENT.sub("", raw)
        start = start or number
        if _CONTINUED.search(piece):
            begun += _CONTINUED.sub(r"\1", piece)
            continue
        if (begun + piece).strip():
            yield start, begun + piece
        begun, start = "", 0
    if begun.strip():
        yield start, begun


def included(text: str) -> str | None:
    """The file that the line names, if it is an ``Include``."""
    found = _INCLUDE.fullmatch(text)
    return found[1] if found else None


def line(where: str, text: str) -> Line:
    """The fields of one logical line; of a key that comes twice the last counts."""
    fields: dict[str, str] = {}
    at = 0
    while found := _FIELD.match(text, at):
        fields[found[1].lower()] = found[3] if found[2] is None else found[2]
        at = found.end()
    return Line(where, fields, text[at:].strip())
