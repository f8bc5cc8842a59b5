"""Which options a container engine's client has, and which of them take a value.

The tables beside this module are read off the clients' own ``--help`` (docker 28.2, podman 4.3) or source
(nerdctl 2.1); a test compares them with the clients that are installed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

ENGINES = ("docker", "podman", "nerdctl")
_TABLES = Path(__file__).with_name("tables")
# "  -e, --env list      Set …" of pflag; a boolean has no word between its name and what it does
_HELP = r" {2,6}(?:(-\w), )?(--[\w-]+)(?: (\S+))?(?:\s{2,}|\s*$)"


@dataclass(frozen=True)
class Flag:
    """One option: its long name (``--env``), its short one (``-e``), and whether a value belongs to it."""

    name: str
    short: Optional[str]
    takes_value: bool


class Table:
    """The options of one command, found by long and short name."""

    def __init__(self, flags: Iterable[Flag]) -> None:
        self.flags = tuple(flags)
        self._found: dict[str, Flag] = {}
        for flag in self.flags:
            for spelling in filter(None, (flag.name, flag.short)):
                self._found.setdefault(spelling, flag)

    def find(self, spelling: str) -> Optional[Flag]:
        return self._found.get(spelling)

    def __add__(self, other: Table) -> Table:
        """Both; where they contradict each other, this one's counts."""
        return Table((*self.flags, *other.flags))


@dataclass(frozen=True)
class Tables:
    """An engine's options: those before its command, those of ``run`` and ``create``, those of ``pull``."""

    before: Table
    run: Table
    pull: Table


def tables_of(engine: str) -> Tables:
    """The tables of ``docker``, ``podman`` or ``nerdctl``.

    podman and nerdctl take the options of the program behind the command, too.
    """
    sections = read_sections((_TABLES / f"{engine}.txt").read_text(encoding="ascii"))
    before, run = sections["global"], sections["run"] + sections["hidden"]
    return Tables(before, run if engine == "docker" else run + before, sections["pull"])


def read_sections(text: str) -> Mapping[str, Table]:
    """The tables in *text*, by the names in brackets. A line is ``-e --env VALUE``; ``#`` is a comment."""
    sections: dict[str, list[Flag]] = {}
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if not words:
            continue
        if words[0].startswith("["):
            sections[words[0].strip("[]")] = flags = []
            continue
        short = words.pop(0) if not words[0].startswith("--") else None
        flags.append(Flag(words[0], short, takes_value=len(words) > 1))
    return {name: Table(flags) for name, flags in sections.items()}


def table_from_help(text: str) -> Table:
    """The options that a client's ``--help`` lists."""
    found = (re.match(_HELP, line) for line in text.splitlines())
    return Table(Flag(one[2], one[1], takes_value=one[3] is not None) for one in found if one)
