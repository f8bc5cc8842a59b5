"""Many short jobs, of several users at once: none leaves anything."""

from __future__ import annotations

import pytest

from .lab import Lab

pytestmark = pytest.mark.slurm
AT_ONCE = 8  # of each user, so that a test machine's few cores do not starve the agent


@pytest.mark.parametrize(
    "jobs", [50, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_many_short_jobs_leave_nothing(lab: Lab, jobs: int) -> None:
    """Each job had a lease of its own that is released; no cgroup, file or drained node is left."""
    before = lab.agent.last_id()
    halves = (f"1-{jobs // 2}", f"1-{jobs - jobs // 2}")
    for user, tasks in zip(("alice", "bob"), halves, strict=True):
        lab.cluster.sbatch("true", "--gres=shard:1", f"--array={tasks}%{AT_ONCE}", user=user)
    lab.cluster.ended(seconds=jobs * 3)
    leases = lab.agent.leases("released", after=before)
    assert len(leases) == jobs
    assert len({lease["holder"]["id"] for lease in leases}) == jobs
