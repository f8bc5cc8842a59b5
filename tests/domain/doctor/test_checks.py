"""The doctor's checks: every one is shown to pass and to fail, and none brings down the others."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace

import pytest

from nodeagent.domain.doctor import CHECKS, Check, Level, Unseen, examine, worst
from nodeagent.domain.doctor.check import check, fail, ok

from . import hardware, holding, own
from .case import Case

CASES: tuple[Case, ...] = (*hardware.CASES, *holding.CASES, *own.CASES)
BY_NAME = {one.name: one for one in CHECKS}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.check} {case.level} {case.said}".strip())
def test_what_a_check_says(case: Case) -> None:
    """Of these facts the check says this, and names what is wrong."""
    one = BY_NAME[case.check]
    (finding,) = examine([one], {one.part: case.facts})
    assert (finding.level, case.said in finding.text) == (case.level, True), finding.text
    assert bool(finding.fix) == (case.level in (Level.WARN, Level.FAIL))


def test_every_check_is_shown_to_pass_and_to_fail() -> None:
    """The tables have for each check facts of which it is OK, and facts of which it warns or fails."""
    levels: defaultdict[str, set[Level]] = defaultdict(set)
    for case in CASES:
        levels[case.check].add(case.level)
    assert set(levels) == set(BY_NAME)
    assert [name for name, seen in levels.items() if Level.OK not in seen] == []
    assert [name for name, seen in levels.items() if not seen & {Level.WARN, Level.FAIL}] == []


def test_there_are_checks_enough_and_each_is_told_apart() -> None:
    """There are forty at least, by different names, each with words, a fix and a public report."""
    assert len(CHECKS) == len(BY_NAME) >= 40
    for one in CHECKS:
        assert one.what and "\n" not in one.what and one.fix, one.name
        assert re.fullmatch(r"[\w.-]+/[\w.-]+#[0-9]+", one.issue), one.name


def crash(facts: object) -> object:
    raise ZeroDivisionError("in a check")


CRASHING = replace(CHECKS[0], name="crashing", judge=crash)


def test_a_crash_is_its_own_finding() -> None:
    """A check that crashes fails by itself; those before and after it are unharmed."""
    facts = {hardware.Driver: hardware.DRIVER}
    before, crashed, after = examine([CHECKS[0], CRASHING, CHECKS[1]], facts)
    assert (before.level, crashed.level, after.level) == (Level.OK, Level.FAIL, Level.OK)
    assert "ZeroDivisionError: in a check" in crashed.text


@pytest.mark.parametrize(
    ("facts", "level", "said"),
    [
        ({hardware.Driver: PermissionError(13, "denied")}, Level.FAIL, "PermissionError"),
        ({hardware.Driver: Unseen("only root may")}, Level.UNSEEN, "only root may"),
        ({}, Level.UNSEEN, "was not looked at"),
    ],
    ids=["raised", "unseen", "missing"],
)
def test_facts_that_could_not_be_gathered(facts: dict[type, object], level: Level, said: str) -> None:
    """A check without its facts says why, by a level of its own where nothing is known to be wrong."""
    (finding,) = examine([CHECKS[0]], facts)
    assert (finding.level, finding.text) == (level, finding.text) and said in finding.text


@pytest.mark.parametrize(
    ("levels", "code"),
    [
        ([], 0),
        ([Level.OK], 0),
        ([Level.OK, Level.UNSEEN], 1),
        ([Level.WARN], 1),
        ([Level.WARN, Level.FAIL], 2),
    ],
)
def test_the_worst_is_the_exit_code(levels: list[Level], code: int) -> None:
    """0 all well, 1 a warning or something unseen, 2 a failure."""
    (finding,) = examine([CHECKS[0]], {})
    assert worst([replace(finding, level=level) for level in levels]) == code


def test_many_offenders_are_one_line() -> None:
    """A line names the first three of many, and how many more there are."""
    many = [hardware.device(f"0000:{bus:02x}:00.0", queue_slots=4) for bus in range(9)]
    (finding,) = examine([BY_NAME["queue-slots"]], {hardware.Devices: hardware.both(hardware.look(*many))})
    assert finding.text.endswith("; and 6 more") and "\n" not in finding.text


def test_an_issue_is_a_public_address() -> None:
    """A check cannot be made that names no report as owner/repository#number."""
    with pytest.raises(ValueError, match="owner/repository"):
        check(object, "area", fix="mend it", issue="some day")
    made = check(object, "area", fix="mend it", issue="a/b#1")(lambda facts: ok("well"))
    assert isinstance(made, Check) and fail("bad").level is Level.FAIL
