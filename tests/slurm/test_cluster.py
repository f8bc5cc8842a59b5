"""The cluster itself: both nodes run jobs of its users."""

from __future__ import annotations

import pytest

from .cluster import Cluster

pytestmark = pytest.mark.slurm


@pytest.mark.parametrize("node", ["gpu0", "cpu0"])
def test_each_node_runs_jobs_of_users(cluster: Cluster, node: str) -> None:
    """A user's srun runs as that user on the node that it asked for."""
    done = cluster.srun(f"--nodelist={node}", "sh", "-c", "hostname; id -u")
    assert done.stdout.split() == [node, "61001"], done.stderr + cluster.logs()
