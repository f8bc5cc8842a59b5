"""docs/threats.md names tests that exist, and says of every threat whether it holds in this version."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "threats.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (\d+) \|(.*)\|$", re.M)
TEST = re.compile(r"`(tests/[a-z_/]+\.py)::(test_[a-z0-9_]+)`")
KNOWN = set(range(1, 31))


def section(heading: str) -> dict[int, str]:
    """The rows of the table below *heading*."""
    _, _, text = PAGE.partition(f"\n## {heading}\n")
    return {int(number): row for number, row in ROW.findall(text.partition("\n## ")[0])}


@cache
def functions(path: str) -> frozenset[str]:
    file = ROOT / path
    tree = ast.parse(file.read_text(encoding="utf-8")) if file.is_file() else ast.Module([], [])
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("number", sorted(KNOWN))
def test_every_held_threat_names_tests_that_exist(number: int) -> None:
    """A rule without a test is a wish."""
    named = TEST.findall(section("Held in this version").get(number, ""))
    assert named, f"threat {number} names no test"
    missing = [f"{path}::{name}" for path, name in named if name not in functions(path)]
    assert not missing


def test_every_threat_is_held() -> None:
    """The table leaves no number out, and has none that nobody knows."""
    assert section("Held in this version").keys() == KNOWN


def test_no_test_is_named_in_another_way() -> None:
    """A name that is spelled so that it is not looked up would hide that it is gone."""
    assert len(TEST.findall(PAGE)) == PAGE.count("::")
