"""Scripts that slurmd runs twice, late, or for a job that it never told of before."""

from __future__ import annotations

import pytest

from .lab import Lab, Task
from .versions import FIELD

pytestmark = pytest.mark.slurm


def again(lab: Lab, script: str, task: Task) -> int:
    """Run a script of Slurm's on the node once more, with the variables of a job; its exit code."""
    environment = {
        "SLURM_JOB_ID": task.job,
        "SLURM_JOB_UID": task.environment["SLURM_JOB_UID"],
        "SLURM_JOB_GID": task.environment["SLURM_JOB_GID"],
        "SLURM_JOB_GPUS": "0",
        "SLURM_JOB_RESTART_COUNT": "0",
        "SLURM_JOB_START_TIME": task.environment.get("SLURM_JOB_START_TIME", ""),  # from 23.02 on
        f"SLURM_JOB_{FIELD.upper()}": "gpulease:shards=2",
        "SLURMD_NODENAME": "gpu0",
        "SLURM_CONF": "/etc/slurm/slurm.conf",
    }
    return lab.node.script(script, environment)


def test_a_second_prolog_gives_the_same_lease(lab: Lab) -> None:
    """slurmd that starts a prolog anew after a crash makes no second lease."""
    task = lab.hold("--gres=shard:2")
    before = lab.agent.leases()
    assert again(lab, "prolog", task) == 0
    assert lab.agent.leases() == before


def test_a_second_epilog_succeeds(lab: Lab) -> None:
    """An epilog for a job that has ended does nothing, with success: before 26.05 Slurm may repeat it."""
    task = lab.run("--gres=shard:2")
    lab.cluster.ended(task.job)
    assert again(lab, "epilog", task) == 0
    assert lab.agent.outcomes(task.job) == ["released"]


def test_an_epilog_without_a_prolog_succeeds(lab: Lab) -> None:
    """The agent never heard of the job."""
    stranger = Task("4000000", {"SLURM_JOB_UID": "61001", "SLURM_JOB_GID": "61001"}, "")
    assert again(lab, "epilog", stranger) == 0


def test_scancel_during_the_prolog_leaves_nothing(lab: Lab) -> None:
    """The prolog of a job that is cancelled meanwhile ends its way, and the epilog takes the lease back."""
    lab.agent.pause()
    file = lab.file()
    job = lab.cluster.sbatch(f"{lab.show} {file}", "--gres=shard:2")
    lab.cluster.until(lambda: lab.node.runs("prolog"))
    lab.cluster.slurm("scancel", job)
    lab.agent.resume()
    lab.cluster.ended(job)
    assert not file.exists()


def test_a_prolog_that_outlives_its_slurmd_leaves_nothing(lab: Lab) -> None:
    """slurmd dies under a prolog, whose lease nobody waits for: the job's epilog takes it back."""
    lab.agent.pause()
    job = lab.cluster.sbatch("exec sleep 600", "--gres=shard:2")
    lab.cluster.until(lambda: lab.node.runs("prolog"))
    lab.node.stop_slurmd("KILL")
    lab.agent.resume()
    lab.cluster.until(lambda: not lab.node.runs("prolog"))
    lab.node.start_slurmd()
    lab.cluster.cancel(job)
    lab.await_nothing()


def test_a_job_waits_for_an_agent_that_restarts(lab: Lab) -> None:
    """A prolog that finds the agent away for a moment gets its lease when it is back: nothing drains."""
    lab.agent.kill()
    file = lab.file()
    job = lab.cluster.sbatch(f"{lab.show} {file}\nexec sleep 600", "--gres=shard:2")
    lab.cluster.until(lambda: lab.node.runs("prolog"))
    lab.agent.start()
    assert lab.task(file).environment["GPULEASE_ID"] == str(lab.agent.lease(job)["id"])


def test_a_slow_agent_is_waited_for(lab: Lab) -> None:
    """Prolog, task-prolog and epilog that are answered seconds late, within the deadline: the node stays."""
    lab.settings(deadline=60, epilog_wait=60)
    file = lab.file()
    with lab.agent.slowed():
        job = lab.cluster.sbatch(f"{lab.show} {file}", "--gres=shard:2")
        lab.cluster.until(file.exists, why=lab.why, seconds=90)
        lab.cluster.ended(job, seconds=90)
    assert lab.task(file).environment["GPULEASE_ID"]
    assert lab.agent.outcomes(job) == ["released"]


def test_an_agent_that_answers_nothing_for_a_while_is_waited_for(lab: Lab) -> None:
    """A prolog whose agent goes on within the deadline gets its lease."""
    lab.agent.pause()
    file = lab.file()
    lab.cluster.sbatch(f"{lab.show} {file}\nexec sleep 600", "--gres=shard:2")
    lab.cluster.until(lambda: lab.node.runs("prolog"))
    lab.agent.resume()
    assert lab.task(file).environment["GPULEASE_ID"]


def test_what_an_absent_agent_missed_is_made_up_for(lab: Lab) -> None:
    """An agent that is dead from before a job's start until after its end leaves neither lease nor record."""
    lab.settings(deadline=1, on_agent_down="fail")
    lab.agent.kill()
    lab.cluster.srun("--gres=shard:2", "true")
    lab.cluster.ended()
    lab.agent.start()
    lab.await_nothing()


def test_a_lease_that_ended_behind_the_agents_back_is_released(lab: Lab) -> None:
    """The epilog's record in the spool ends a lease whose job ended while the agent was dead."""
    lab.settings(deadline=1)
    task = lab.hold("--gres=shard:2")
    lab.agent.kill()
    lab.cluster.cancel(task.job)
    assert any(name.startswith(f"slurm/epilog-{task.job}-") for name in lab.records())
    lab.agent.start()
    lab.await_nothing()
    assert lab.agent.outcomes(task.job) == ["released"]
