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


def test_a_task_sees_the_whole_gpus_that_slurm_bound_it_to(lab: Lab) -> None:
    """Of a job of four GPUs: a step of two has those, a task of one its own, and a step of all the job's."""
    files = [lab.file() for _ in range(4)]
    two, one, other, all_four = map(str, files)
    each = f"[ $SLURM_PROCID = 0 ] && exec {lab.show} {one}; exec {lab.show} {other}"
    steps = f"""\
srun -n1 --gres=gpu:2 {lab.show} {two}
srun -n2 --gpus-per-task=1 sh -c '{each}'
srun -n1 {lab.show} {all_four}
"""
    lab.cluster.sbatch(f"{steps}exec sleep 600", "--nodelist=gpu0", "--ntasks=2", "--gres=gpu:4")
    seen = [lab.task(file).environment["ROCR_VISIBLE_DEVICES"].split(",") for file in files]
    every = seen[3]
    assert seen[0] == every[:2]
    assert sorted(seen[1] + seen[2]) == sorted(every[:2])
    assert len(set(every)) == 4
