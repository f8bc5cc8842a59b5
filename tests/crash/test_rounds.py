"""Agents killed at their system calls: nothing is lost, held twice or left behind; `make crash` does more."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.root, pytest.mark.cgroup2]


def crash(*options: str) -> tuple[int, str]:
    """The status and the report."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash", *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def points(report: str) -> int:
    found = re.search(r"distinct kill points (\d+), violations 0$", report, re.M)
    assert found, report
    return int(found[1])


def test_some_deaths_leave_nothing_wrong() -> None:
    """At a few random calls: the next agent finds what is right, and makes it so."""
    status, report = crash("--points", "25", "--jobs", "1")
    assert status == 0, report
    assert points(report) >= 25


def test_steps_in_the_wrong_order_are_found() -> None:
    """An agent that frees a slice before it has undone what holds it is found out."""
    status, report = crash("--mutant", "freed-before-undone")
    assert status == 0, report
    assert "VIOLATION" in report


def test_a_ledger_that_is_not_synced_is_found() -> None:
    """An agent that answers before its rows are on disk loses them with the power, and is found out."""
    status, report = crash("--mutant", "never-synced", "--power")
    assert status == 0, report
    assert "VIOLATION" in report


def test_errors_that_are_ignored_are_found() -> None:
    """An agent that answers what its disk did not take has lost it, and is found out."""
    status, report = crash("--mutant", "errors-ignored", "--errors")
    assert status == 0, report
    assert "VIOLATION" in report
