"""The table of ways out in docs/enforcement.md, from the marks of the tests that prove each row.

A test says with ``@pytest.mark.way_out("env -i", tier="hook", outcome="…")`` which attempt it makes on which
tier, and what comes of it: the test asserts that outcome, whether it is the one that we would like or not.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "enforcement.md"
BEGIN, END = "<!-- ways out: begin -->\n", "<!-- ways out: end -->\n"
TIERS = ("kernel", "supervised", "hook", "banks", "mask", "acl", "watch")


@dataclass(frozen=True, slots=True, order=True)
class WayOut:
    """One attempt on one tier: what comes of it, and the test that shows it."""

    tier: str
    way: str
    outcome: str
    test: str


def ways_out(tests: Path = ROOT / "tests") -> tuple[WayOut, ...]:
    """Every mark in *tests*, tier by tier. Raises ValueError for one with other arguments than literals."""
    found = [way for path in sorted(tests.rglob("test_*.py")) for way in _marks(path)]
    return tuple(sorted(found, key=lambda way: (TIERS.index(way.tier), way.way, way.test)))


def _marks(path: Path) -> Iterator[WayOut]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.way_out":
                    named = {word.arg: ast.literal_eval(word.value) for word in mark.keywords}
                    (way,) = [ast.literal_eval(argument) for argument in mark.args]
                    yield WayOut(test=f"{path.relative_to(ROOT)}::{node.name}", way=way, **named)


def table(rows: tuple[WayOut, ...]) -> str:
    """The rows as the page shows them."""
    lines = ["| Tier | Way out | What comes of it | Shown by |", "|---|---|---|---|"]
    lines += [f"| {row.tier} | {row.way} | {row.outcome} | `{row.test}` |" for row in rows]
    return "\n".join(lines) + "\n"


def shown(page: str) -> str:
    """What stands between the page's markers."""
    return page.partition(BEGIN)[2].partition(END)[0]


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    if "--write" in sys.argv:
        PAGE.write_text(
            text.replace(BEGIN + shown(text) + END, BEGIN + table(ways_out()) + END), encoding="utf-8"
        )
    elif shown(text) != table(ways_out()):
        sys.exit("docs/enforcement.md has fallen behind the tests: run `make enforcement`")
