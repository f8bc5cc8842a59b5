"""The cluster and the agent that all tests here share; each test finds them idle and must leave them so."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from .agent import served_agent
from .cluster import missing, running_cluster
from .lab import Lab
from .space import ROOT


@pytest.fixture(scope="session")
def shared_lab() -> Iterator[Lab]:
    """The cluster, with an agent on its node of GPUs."""
    if os.geteuid() != 0:
        pytest.skip("a cluster needs uid 0, for namespaces and other users")
    if program := missing():
        pytest.skip(f"needs {program}: make test-slurm installs it")
    with (
        running_cluster(ROOT / "client/slurm") as cluster,
        served_agent(cluster.nodes["gpu0"], "mi300x-spx") as agent,
    ):
        yield Lab(cluster, agent)


@pytest.fixture
def lab(shared_lab: Lab) -> Iterator[Lab]:
    """All nodes idle and no lease. A test that leaves a lease, a cgroup, a file or a drained node fails."""
    shared_lab.settings()
    yield shared_lab
    cluster = shared_lab.cluster
    cluster.cancel(*cluster.queue()) if cluster.queue() else None
    left = shared_lab.leftovers()
    cluster.resume()
    assert left == []
