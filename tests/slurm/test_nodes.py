"""Jobs of several nodes: each node keeps its own part."""

from __future__ import annotations

import pytest

from .agent import ServedAgent
from .lab import Lab
from .settings import SCRIPTS
from .versions import FIELD

pytestmark = pytest.mark.slurm


def test_each_node_gives_its_own_lease(lab: Lab, fake: ServedAgent) -> None:
    """A job of two nodes has a lease on either, by what a shard is worth there."""
    job = lab.cluster.sbatch("exec sleep 600", "--partition=pair", "--nodes=2", "--gres=shard:2")
    lab.cluster.until(lambda: lab.agent.lease(job) and fake.lease(job))
    here, there = lab.agent.lease(job), fake.lease(job)
    assert here and there
    assert here["slices"][0]["vram_bytes"] > there["slices"][0]["vram_bytes"]


def test_one_node_that_refuses_fails_the_job(lab: Lab, fake: ServedAgent) -> None:
    """A job whose request fits the shards of one node only fails; both nodes stay and keep nothing."""
    job = ("--partition=pair", "--nodes=2", "--gres=shard:1", f"--{FIELD}=gpulease:vram=12G")
    done = lab.cluster.srun(*job, "true")
    assert done.returncode != 0
    assert "gpulease: " in done.stdout
    lab.cluster.ended()
    assert lab.agent.leases() + fake.leases() == []
    assert lab.cluster.out_of_service() == {}


def test_components_of_a_heterogeneous_job_are_jobs_of_their_own(lab: Lab) -> None:
    """The component with GPUs has a lease, under the component's own id; the one without has none."""
    file = lab.file()
    done = lab.cluster.srun(
        *("--nodelist=gpu0", "--gres=shard:2", str(lab.show), str(file)),
        *(":", "--nodelist=cpu0", "true"),
    )
    assert done.returncode == 0, done.stderr
    task = lab.task(file)
    assert task.cgroup.endswith(f"-{task.environment['GPULEASE_ID']}.slice")


def test_slurmd_is_held_until_the_agent_grants(lab: Lab) -> None:
    """What slurmd's unit runs first ends well with an agent, and badly on a node whose agent is not there."""
    await_agent = (f"{SCRIPTS}/await-agent", "2")
    assert lab.node.space.run(*await_agent).returncode == 0
    assert lab.cluster.nodes["cpu0"].space.run(*await_agent).returncode == 1
