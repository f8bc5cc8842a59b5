"""What an attempt to get out of a lease means, for what the lease states."""

from __future__ import annotations

import ast

import pytest

from nodeagent.audit import ATTEMPTS
from nodeagent.domain.audit import ELSEWHERE, KFD, REFUSED, RENDER, TAKEN, WAYS, Level, judge, worst
from nodeagent.domain.guarantee import Memory

GPU = "0000:05:00.0/0"
ON_DEVICE = [way.name for way in WAYS if way.control]
ON_NODE = [way.name for way in WAYS if not way.control]
FITS = {KFD: TAKEN, RENDER: TAKEN}


def outcomes(outcome: str, **changes: str) -> dict[str, dict[str, str]]:
    """Every way with the same *outcome*, and what fits let through."""
    return {GPU: {**FITS, **dict.fromkeys(ON_DEVICE, outcome)}, "": dict.fromkeys(ON_NODE, outcome)}


@pytest.mark.parametrize(
    ("stated", "broken"),
    [
        (Memory.KERNEL, len(WAYS)),
        (Memory.SUPERVISED, len(WAYS)),
        (Memory.HOOK, len(WAYS) - 3),
        (Memory.ADVISORY, len(ON_NODE)),
    ],
)
def test_what_is_stated_must_hold(stated: Memory, broken: int) -> None:
    """A way that leads out breaks just the tiers that close it; for a weaker one it is open."""
    told = judge(stated, outcomes(f"{TAKEN}: all of it"))
    levels = [one.level for one in told if one.level is not Level.ELSEWHERE]
    assert (levels.count(Level.BROKEN), levels.count(Level.OPEN)) == (broken, len(WAYS) - broken)
    assert worst(told) == 2


@pytest.mark.parametrize("stated", Memory)
def test_what_is_refused_is_held(stated: Memory) -> None:
    """Where every way is refused, and what fits let through, the lease holds."""
    told = judge(stated, outcomes(REFUSED))
    assert {one.level for one in told} == {Level.HELD, Level.ELSEWHERE} and worst(told) == 0


def test_a_refusal_of_everything_proves_nothing() -> None:
    """Where what fits is refused, too, nobody knows what refused the rest."""
    found = outcomes(REFUSED)
    found[GPU][KFD] = REFUSED
    del found[GPU][RENDER]
    told = {one.way: one for one in judge(Memory.HOOK, found)}
    assert {told[name].level for name in ON_DEVICE} == {Level.UNTRIED}
    assert "proves nothing" in told[ON_DEVICE[0]].text
    assert worst(list(told.values())) == 1


def test_what_could_not_be_tried_is_said() -> None:
    """A node without KFD, or an outcome that is missing, is neither held nor broken."""
    told = judge(Memory.HOOK, {GPU: {**FITS, ON_DEVICE[0]: "/dev/kfd: No such file or directory"}})
    levels = {one.way: one.level for one in told}
    assert set(levels) == {way.name for way in WAYS} | set(ELSEWHERE)
    assert {levels[way.name] for way in WAYS} == {Level.UNTRIED} and worst(told) == 1


def test_each_device_is_judged_by_its_own() -> None:
    """A lease of two devices breaks where one of them does."""
    found = {**outcomes(REFUSED), "0000:27:00.0/0": {**FITS, ON_DEVICE[0]: TAKEN}}
    broken = [one for one in judge(Memory.HOOK, found) if one.level is Level.BROKEN]
    assert [(one.device, one.way) for one in broken] == [("0000:27:00.0/0", ON_DEVICE[0])]


def test_the_program_runs_with_any_users_python() -> None:
    """What runs inside the lease is Python 3.9, and imports nothing of nodeagent."""
    tree = ast.parse(ATTEMPTS.read_text(encoding="utf-8"), feature_version=(3, 9))
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
        )
    }
    assert "nodeagent" not in imported and "gpulease" in imported
