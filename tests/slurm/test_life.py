"""The life of a job, with all that Slurm may do to it: its lease begins and ends with it, once."""

from __future__ import annotations

import time

import pytest

from .agent import ServedAgent
from .lab import Lab
from .settings import SHARDS

pytestmark = pytest.mark.slurm
GRAIN = 2 << 20


def test_the_lease_ends_with_the_job(lab: Lab) -> None:
    """When Slurm has forgotten a job its lease is released, with proof."""
    job = lab.run("--gres=shard:2").job
    lab.cluster.ended(job)
    assert lab.agent.lease(job) is None
    assert lab.agent.outcomes(job) == ["released"]


def test_a_requeued_job_gets_another_lease(lab: Lab) -> None:
    """The second run of a job, of the same id, has a lease of its own; the first one's is released."""
    first = lab.hold("--gres=shard:2", "--requeue")
    before = lab.agent.lease(first.job)
    lab.cluster.slurm("scontrol", "requeue", first.job)
    lab.cluster.until(lambda: lab.cluster.queue()[first.job] == "PENDING")
    after = lab.cluster.until(lambda: lab.agent.lease(first.job), why=lab.why)
    assert before and after["id"] > before["id"]
    assert lab.agent.outcomes(first.job) == ["released"]


def test_what_a_job_leaves_running_ends_with_its_lease(lab: Lab) -> None:
    """A daemon that Slurm lost sight of is in the lease's cgroup: it is ended, and only then the lease."""
    file = lab.file()
    daemon = f"setsid sh -c 'sleep 600 & echo $! >{file}.new; mv {file}.new {file}' >/dev/null 2>&1 &"
    lab.cluster.srun("--gres=shard:2", "sh", "-c", f"{daemon} while ! [ -e {file} ]; do sleep 0.1; done")
    lab.cluster.ended()
    assert lab.node.space.run("kill", "-0", file.read_text().strip()).returncode != 0
    assert lab.agent.leases() == []


def test_each_task_of_an_array_has_a_lease(lab: Lab) -> None:
    """Tasks of an array are jobs of their own."""
    job = lab.cluster.sbatch("sleep 600", "--gres=shard:1", "--array=1-3")
    lab.cluster.until(lambda: len(lab.agent.leases()) == 3)
    holders = {one["holder"]["id"] for one in lab.agent.leases()}
    assert len(holders) == 3
    assert job in holders  # the last to start keeps the array's own id


def test_a_suspended_job_keeps_its_lease(lab: Lab) -> None:
    """Suspend and resume call no script: the lease is as it was, and its processes live on."""
    task = lab.hold("--gres=shard:2")
    before = lab.agent.lease(task.job)
    lab.cluster.slurm("scontrol", "suspend", task.job)
    lab.cluster.until(lambda: lab.cluster.queue()[task.job] == "SUSPENDED")
    assert lab.agent.lease(task.job) == before
    lab.cluster.slurm("scontrol", "resume", task.job)
    lab.cluster.until(lambda: lab.cluster.queue()[task.job] == "RUNNING")
    assert lab.agent.lease(task.job) == before


@pytest.mark.parametrize("signal", ["TERM", "KILL"])
def test_slurmd_may_restart_under_a_job(lab: Lab, signal: str) -> None:
    """The lease outlives slurmd, however it ends, and goes with the job's end under the next slurmd."""
    task = lab.hold("--gres=shard:2")
    before = lab.agent.lease(task.job)
    lab.node.stop_slurmd(signal)
    assert lab.agent.lease(task.job) == before
    lab.node.start_slurmd()
    lab.cluster.cancel(task.job)
    assert lab.agent.outcomes(task.job) == ["released"]


def test_the_agent_may_restart_under_a_job(lab: Lab) -> None:
    """A job runs on while the agent is killed and started; its lease stays, and ends with it."""
    task = lab.hold("--gres=shard:2")
    before = lab.agent.lease(task.job)
    lab.agent.kill()
    lab.agent.start()
    assert lab.agent.lease(task.job) == before
    lab.cluster.cancel(task.job)
    assert lab.agent.outcomes(task.job) == ["released"]


@pytest.mark.parametrize(("partition", "then"), [("main", "PENDING"), ("cheap", None)])
def test_a_preempted_job_leaves_its_gpus(lab: Lab, partition: str, then: str | None) -> None:
    """Requeued or cancelled for one of a better partition: that one has its lease where the other's was."""
    first = lab.hold("--gres=gpu:8", f"--partition={partition}", "--nodelist=gpu0")
    urgent = lab.hold("--gres=gpu:8", "--partition=urgent", user="bob")
    assert lab.cluster.queue().get(first.job) == then
    assert lab.agent.outcomes(first.job) == ["released"]
    (lease,) = lab.agent.leases()
    assert lease["holder"]["id"] == urgent.job
    assert len(lease["slices"]) == 8


@pytest.mark.slow
def test_a_job_whose_node_reboots_gets_another_lease(lab: Lab) -> None:
    """No epilog comes for the run before: its lease ends with the boot, and the next run has its own."""
    first = lab.hold("--gres=shard:2", "--requeue")
    before = lab.agent.lease(first.job)
    time.sleep(20)  # younger jobs slurmctld takes for not started yet
    lab.agent.lose_power()
    lab.new_boot()
    lab.agent.start()
    lab.node.start_slurmd("-b")
    after = lab.cluster.until(lambda: lab.agent.lease(first.job), why=lab.why, seconds=120)
    assert before and after["id"] > before["id"]
    assert lab.agent.outcomes(first.job) == ["released"]


def test_components_of_a_heterogeneous_job_have_a_lease_each(lab: Lab, fake: ServedAgent) -> None:
    """One on each node, of the shards that the component asked for; each task has its own component's."""
    files = [lab.file(), lab.file()]
    common = ("--partition=pair", "--nodes=1")
    first = (*common, "--nodelist=gpu0", "--gres=shard:2", str(lab.show), str(files[0]))
    second = (*common, "--nodelist=gpu1", "--gres=shard:1", str(lab.show), str(files[1]))
    done = lab.cluster.srun(*first, ":", *second)
    assert done.returncode == 0, done.stderr + lab.why()
    here, there = (lab.task(file) for file in files)
    lab.cluster.ended()
    for agent, task, shards in ((lab.agent, here, 2), (fake, there, 1)):
        lease = agent.leases("released", after=int(task.environment["GPULEASE_ID"]) - 1)[0]
        share = agent.device(lease["slices"][0]["device"])["grantable_bytes"] * shards // SHARDS
        assert share - GRAIN <= lease["slices"][0]["vram_bytes"] <= share
