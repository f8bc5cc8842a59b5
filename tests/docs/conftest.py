"""How the tests read the documentation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
HEADING = re.compile(r"^#{1,6} +(.+?)\s*$")
FENCE = re.compile(r"^\s*(```|~~~)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
FIRST_CELL = re.compile(r"^\| `([^`]+)` \|(.*)\|$", re.M)


@dataclass(frozen=True, slots=True)
class Page:
    """One page: heading to the text below it, up to the next heading of any level."""

    name: str
    sections: dict[str, str]

    @classmethod
    def read(cls, name: str) -> Page:
        sections: dict[str, str] = {}
        heading, fenced = "", False
        for line in (DOCS / name).read_text(encoding="utf-8").splitlines():
            fenced ^= bool(FENCE.match(line))
            found = None if fenced else HEADING.match(line)
            if found:
                heading = found[1].replace("`", "")
            else:
                sections[heading] = sections.get(heading, "") + line + "\n"
        return cls(name, sections)

    def headings(self, start: str) -> set[str]:
        """The headings that begin with *start*."""
        return {heading for heading in self.sections if heading.startswith(start)}

    def options(self, heading: str) -> set[str]:
        """Every long option that the section names."""
        return set(OPTION.findall(self.sections.get(heading, "")))

    def rows(self, heading: str) -> dict[str, str]:
        """Of the section's table: the code in the first cell, and the rest of the row."""
        return dict(FIRST_CELL.findall(self.sections[heading]))


@pytest.fixture
def page() -> Callable[[str], Page]:
    """Read a page of the documentation by its file's name."""
    return Page.read


@pytest.fixture
def same() -> Callable[[str, Iterable[str], Iterable[str]], None]:
    """Fail with both differences when what exists is not what is documented."""

    def compare(where: str, exists: Iterable[str], documented: Iterable[str]) -> None:
        exists, documented = set(exists), set(documented)
        complaints = [f"{where} says nothing of {name}" for name in sorted(exists - documented)]
        complaints += [f"{where} names {name}, which does not exist" for name in sorted(documented - exists)]
        assert not complaints, "\n".join(complaints)

    return compare
