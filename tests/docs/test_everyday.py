"""What docs/everyday.md has people type prints what it says."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from .desk import Desk, at_a_desk

DOCS = Path(__file__).resolve().parents[2] / "docs"
CODE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True)
class Line:
    """A row of one of the page's tables."""

    typed: str
    shown: tuple[str, ...]  # fragments of what it prints


def lines() -> tuple[Line, ...]:
    text = (DOCS / "everyday.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `((?:gpulease|nodeagent) [^`]+)` \| (.*) \|$", text, re.M)
    return tuple(Line(typed, tuple(CODE.findall(said))) for typed, said in rows)


LINES = lines()


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    """Every command of the page was typed, in the page's order."""
    if os.geteuid() != 0:
        pytest.skip("only root drains and bypasses")
    with at_a_desk() as made:
        for line in LINES:
            made.type(line.typed)
        yield made


@pytest.mark.root
@pytest.mark.parametrize("line", LINES, ids=lambda line: line.typed)
def test_each_prints_what_the_page_shows(desk: Desk, line: Line) -> None:
    """Each fragment that is shown is in the output; of the programs that are run, what they print."""
    printed = desk.printed[line.typed]
    for shown in line.shown:
        if shown.startswith("--"):  # an option that the text speaks of
            continue
        pattern = re.escape(desk.as_here(shown.strip())).replace("…", ".*")
        assert re.search(pattern, printed), f"{shown!r} is not in:\n{printed}"
    for name, said in (("train.py", "trained"), ("./solver", "solved")):
        if f"-- python {name}" in line.typed or f"-- {name}" in line.typed:
            assert said in printed


def test_there_are_ten_of_each() -> None:
    """Ten commands of a user's and ten of an administrator's."""
    programs = [line.typed.split()[0] for line in LINES]
    assert programs == ["gpulease"] * 10 + ["nodeagent"] * 10
