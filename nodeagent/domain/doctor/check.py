"""What a check of `nodeagent doctor` is: a judgement on facts that somebody else gathered."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from nodeagent.domain.level import Level

P = TypeVar("P")
_ISSUE = re.compile(r"[\w.-]+/[\w.-]+#[0-9]+")
_NAMED = 3  # offenders that one line names


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one check, in one line."""

    level: Level
    text: str


@dataclass(frozen=True, slots=True)
class Check:
    """One check: *judge* takes facts of the kind *part*. *issue*: a public report, owner/repo#number."""

    name: str
    area: str
    what: str
    fix: str
    issue: str
    part: type[Any]
    judge: Callable[[Any], Verdict]
    without: Callable[[Any], str | None]  # why there is nothing to judge


@dataclass(frozen=True, slots=True)
class Finding:
    """A check and its verdict, for a line or for JSON. *fix* is empty where nothing is wrong."""

    name: str
    area: str
    level: Level
    text: str
    fix: str
    issue: str


@dataclass(frozen=True, slots=True)
class Unseen:
    """Stands for facts that this process may not look at, with the reason."""

    why: str


Facts = Mapping[type[Any], object]  # by kind: facts, `Unseen`, or the exception that gathering them raised


def check(
    part: type[P],
    area: str,
    *,
    fix: str,
    issue: str,
    without: Callable[[P], str | None] = lambda facts: None,
) -> Callable[[Callable[[P], Verdict]], Check]:
    """Make a check of a function: its name and its one-line docstring are the check's.

    Args:
        without: why there is nothing to judge in these facts: the check is UNSEEN then. None: there is.
    """
    if not _ISSUE.fullmatch(issue):
        raise ValueError(f"{issue!r} is not owner/repository#number")

    def made(judge: Callable[[P], Verdict]) -> Check:
        name = judge.__name__.replace("_", "-")
        what = (judge.__doc__ or "").strip().rstrip(".")
        return Check(name, area, what, fix, issue, part, judge, without)

    return made


def ok(text: str) -> Verdict:
    return Verdict(Level.OK, text)


def unseen(text: str) -> Verdict:
    return Verdict(Level.UNSEEN, text)


def warn(text: str) -> Verdict:
    return Verdict(Level.WARN, text)


def fail(text: str) -> Verdict:
    return Verdict(Level.FAIL, text)


def some(offenders: Sequence[str]) -> str:
    """The first few of *offenders*, and how many more there are."""
    more = len(offenders) - _NAMED
    return "; ".join(offenders[:_NAMED]) + (f"; and {more} more" if more > 0 else "")


def either(offenders: Sequence[str], bad: Callable[[str], Verdict], good: str) -> Verdict:
    """*bad* of the offenders, or that all is *good*."""
    return bad(some(offenders)) if offenders else ok(good)


def examine(checks: Iterable[Check], facts: Facts) -> list[Finding]:
    """One finding a check, whatever happens in one of them."""
    return [_finding(one, _verdict(one, facts)) for one in checks]


def worst(findings: Iterable[Finding]) -> int:
    """The exit code that *findings* stand for: 0 all well, 1 warnings, 2 failures."""
    return max((finding.level.exit_code for finding in findings), default=0)


def _verdict(one: Check, facts: Facts) -> Verdict:
    part = facts.get(one.part, Unseen("was not looked at"))
    if isinstance(part, Unseen):
        return unseen(part.why)
    if isinstance(part, Exception):
        return fail(f"looking at it failed: {_told(part)}")
    try:
        why = one.without(part)
        return one.judge(part) if why is None else unseen(why)
    except Exception as fault:  # a crash is this check's own finding, never the end of the others
        return fail(f"the check itself failed: {_told(fault)}")


def _told(fault: Exception) -> str:
    return f"{type(fault).__name__}: {fault}"


def _finding(one: Check, verdict: Verdict) -> Finding:
    fix = one.fix if verdict.level in (Level.WARN, Level.FAIL) else ""
    return Finding(one.name, one.area, verdict.level, verdict.text, fix, one.issue)
