"""No CU ever has two holders, by a witness that the agent knows nothing of."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.contention import Result, storm

MUTANT = (str(Path(__file__).with_name("mutant_agent.py")),)


def assert_sound(result: Result, kills: int) -> None:
    """Nothing that must not happen happened, and what had to happen did."""
    assert result.counts["granted"]
    assert result.counts["conflict"] == 0
    assert result.counts["5xx"] == 0
    assert result.locked == 0
    assert result.killed == kills
    assert not [name for name in result.counts if name.startswith("status")]


def test_a_crowd_and_a_killed_worker_share_no_cu() -> None:
    """Clients that want more than there is never hold a CU together, also when the worker is killed."""
    assert_sound(storm(clients=12, seconds=5, kills=1), kills=1)


def test_without_the_guards_the_witness_sees_conflicts() -> None:
    """Without primary key, triggers, lock and transaction the same crowd does hold CUs together."""
    assert storm(clients=24, seconds=6, words=MUTANT).counts["conflict"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_minute_of_twice_the_demand() -> None:
    """64 clients want twice what there is for a minute, two killed workers: many refused, nobody hurt."""
    result = storm(clients=64, seconds=60, kills=2)
    assert_sound(result, kills=2)
    assert result.refused_share >= 0.30
