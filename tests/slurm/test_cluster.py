"""The cluster itself: both nodes run jobs of its users, and see the agent's places."""

from __future__ import annotations

import pytest

from .lab import Lab

pytestmark = pytest.mark.slurm


@pytest.mark.parametrize("node", ["gpu0", "cpu0"])
def test_each_node_runs_jobs_of_users(lab: Lab, node: str) -> None:
    """A user's srun runs as that user on the node that it asked for."""
    done = lab.cluster.srun(f"--nodelist={node}", "sh", "-c", "hostname; id -u")
    assert done.stdout.split() == [node, "61001"], done.stderr + lab.cluster.logs()


def test_a_batch_job_runs_until_it_is_cancelled(lab: Lab) -> None:
    """sbatch starts a job, which sees itself, and scancel ends it."""
    task = lab.hold("--gres=shard:2")
    assert task.environment["SLURM_SHARDS_ON_NODE"] == "2"
    lab.cluster.cancel(task.job)
    assert lab.cluster.queue() == {}
