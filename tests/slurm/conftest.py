"""The cluster and the agent that all tests here share; each test finds them idle and must leave them so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakekfd.fuse_kfd import usable

from .agent import ServedAgent, served_agent
from .cluster import Cluster, missing, running_cluster
from .lab import Lab
from .node import running_fake
from .settings import GPU1
from .space import ROOT

PLUGIN = "/usr/libexec/nodeagent/slurm/gpulease.so"


@pytest.fixture(scope="session")
def shared_lab() -> Iterator[Lab]:
    """The cluster, with an agent on its node of GPUs."""
    if os.geteuid() != 0:
        pytest.skip("a cluster needs uid 0, for namespaces and other users")
    if program := missing():
        pytest.skip(f"needs {program}: make test-slurm installs it")
    with (
        running_cluster() as cluster,
        served_agent(cluster.nodes["gpu0"], "mi300x-spx") as agent,
    ):
        yield Lab(cluster, agent)


@pytest.fixture(scope="session")
def shared_fake(shared_lab: Lab) -> Iterator[ServedAgent]:
    """A second node, with the fake kernel's GPUs, and its agent."""
    if reason := usable():
        pytest.skip(reason)
    cluster = shared_lab.cluster
    with running_fake(GPU1, cluster.head, cluster.directory / GPU1.name) as node, served_agent(node) as agent:
        cluster.nodes[node.name] = node
        yield agent
        del cluster.nodes[node.name]


@pytest.fixture
def fake(shared_fake: ServedAgent, lab: Lab) -> Iterator[ServedAgent]:
    """The second node's agent, without any lease before and after a test."""
    lab.cluster.resume()
    yield shared_fake
    lab.cluster.end_all()
    assert shared_fake.leftovers() == []


@pytest.fixture
def lab(shared_lab: Lab) -> Iterator[Lab]:
    """All nodes idle and no lease. A test that leaves a lease, a cgroup, a file or a drained node fails."""
    shared_lab.settings()
    yield shared_lab
    cluster = shared_lab.cluster
    cluster.end_all()
    left = shared_lab.leftovers()
    cluster.resume()
    assert left == []


@pytest.fixture
def plugged(lab: Lab, fake: ServedAgent, tmp_path: Path) -> Iterator[Cluster]:
    """The cluster with the plugin, as the Makefile installs it; leases on gpu1 have the hook."""
    if not Path("/usr/include/slurm/spank.h").exists():
        pytest.skip("needs Slurm's headers: make test-slurm installs libslurm-dev")
    words = ("make", "-C", str(ROOT), "install-spank", f"DESTDIR={tmp_path}")
    # In there the headers are of the Slurm that runs.
    done = lab.cluster.head.run(*words)
    assert done.returncode == 0, done.stderr
    etc = lab.cluster.head.root / "etc"
    target = lab.cluster.head.root / PLUGIN.lstrip("/")
    target.write_bytes((tmp_path / PLUGIN.lstrip("/")).read_bytes())
    (etc / "gpulease").mkdir(exist_ok=True)
    (etc / "ld.so.preload").touch()
    (etc / "slurm/plugstack.conf").write_text(f"required {PLUGIN}\n")
    yield lab.cluster
    for path in (etc / "slurm/plugstack.conf", etc / "ld.so.preload", target):
        path.unlink()
