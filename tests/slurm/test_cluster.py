"""The cluster itself: both nodes run jobs of its users, and see the agent's places."""

from __future__ import annotations

import pytest

from .lab import Lab
from .settings import SCRIPTS
from .versions import VERSION

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


def test_a_prolog_is_told_what_the_jobs_cgroup_is_called(lab: Lab) -> None:
    """By its SLUID from 26.05 on, as a variable tells that no older version has; before, by its number."""
    dump, prolog = "/run/nodeagent/slurm-told", lab.node.path(f"{SCRIPTS}/prolog")
    ours = prolog.read_text()
    prolog.write_text(f"#!/bin/sh\n/usr/bin/env >{dump}\n{ours}")
    lab.cluster.srun("--nodelist=gpu0", "--gres=shard:1", "true")
    prolog.write_text(ours)
    told = dict(line.split("=", 1) for line in lab.node.path(dump).read_text().splitlines())
    assert {"SLURM_JOB_SLUID", "SLURM_JOB_EXCLUSIVE"} <= told.keys() or VERSION < (26, 5)
    assert "SLURM_JOB_EXCLUSIVE" not in told or VERSION >= (26, 5)
    lab.node.path(dump).unlink()


def test_the_daemons_are_of_the_version_that_is_tested(lab: Lab) -> None:
    """With SLURM_ROOT another Slurm answers than this machine's."""
    shown = lab.cluster.slurm("scontrol", "show", "config").stdout
    (line,) = (line for line in shown.splitlines() if line.startswith("SLURM_VERSION"))
    assert line.partition("=")[2].strip().startswith(f"{VERSION[0]}.{VERSION[1]:02}.")
