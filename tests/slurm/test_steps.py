"""Steps of one job: whatever they ask for, all of them live in the job's one lease."""

from __future__ import annotations

import pytest

from .lab import Lab

pytestmark = pytest.mark.slurm


def test_steps_share_the_lease_of_their_job(lab: Lab) -> None:
    """Steps with fewer shards, and steps that overlap, see the job's lease and add nothing to it."""
    files = [lab.file() for _ in range(4)]
    asked = [
        "--gres=shard:1",
        "--gres=shard:4 --overlap",
        "--gres=shard:4 --overlap",
        "--gres=shard:2 --exact",
    ]
    steps = [f"srun -n1 {how} {lab.show} {file} &" for how, file in zip(asked, files, strict=True)]
    lab.cluster.sbatch("\n".join([*steps, "wait", "exec sleep 600"]), "--gres=shard:4", "--ntasks=4")
    tasks = [lab.task(file) for file in files]
    lease = lab.agent.lease(tasks[0].job)
    assert lease is not None
    assert {task.cgroup for task in tasks} == {lease["cgroup"]}
    assert {task.environment["GPULEASE_ID"] for task in tasks} == {str(lease["id"])}
    assert len(lab.agent.leases()) == 1


def test_the_lease_lives_between_steps(lab: Lab) -> None:
    """An allocation keeps its lease after the end of a step, for the next."""
    first, second = lab.file(), lab.file()
    steps = f"srun {lab.show} {first} && sleep 1 && srun {lab.show} {second}"
    lab.cluster.slurm("salloc", "--gres=shard:2", "sh", "-c", steps, user="alice")
    assert lab.task(first).environment["GPULEASE_ID"] == lab.task(second).environment["GPULEASE_ID"]


def test_an_allocation_without_a_step_leaves_nothing(lab: Lab) -> None:
    """salloc whose command starts no step has a lease while it runs, and none after."""
    before = lab.agent.last_id()
    done = lab.cluster.slurm("salloc", "--gres=shard:2", "true", user="alice")
    assert done.returncode == 0, done.stderr
    lab.cluster.ended()
    assert lab.agent.leases() == []
    assert len(lab.agent.leases("released", after=before)) == 1
