"""The cluster that all tests here share; each test finds it idle and leaves it so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from .cluster import Cluster, missing, running_cluster


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[Cluster]:
    """The cluster, started once."""
    if os.geteuid() != 0:
        pytest.skip("a cluster needs uid 0, for namespaces and other users")
    if program := missing():
        pytest.skip(f"needs {program}: make test-slurm installs it")
    with running_cluster(Path(__file__).parent / "standins") as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with all nodes idle."""
    yield shared_cluster
    shared_cluster.settle()
