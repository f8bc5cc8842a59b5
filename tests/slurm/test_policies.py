"""What becomes of jobs and of their node while the agent gives no answer, as the site chose."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .lab import Lab
from .troubles import TROUBLES

pytestmark = pytest.mark.slurm
SHORT = ("stopped",)  # the others take longer, and are of the same kind


@pytest.fixture(
    params=[pytest.param(name, marks=[] if name in SHORT else pytest.mark.slow) for name in TROUBLES]
)
def trouble(lab: Lab, request: pytest.FixtureRequest) -> Iterator[str]:
    """An agent in each trouble; the socket at which the scripts find it so."""
    with TROUBLES[request.param](lab) as socket:
        yield socket
    lab.await_nothing()


def test_drain_keeps_users_off_the_node(lab: Lab, trouble: str) -> None:
    """By default the node drains, slurmd's log says why, and no code of the user's runs."""
    lab.settings(deadline=1, socket=trouble)
    file = lab.file()
    done = lab.cluster.srun("--gres=shard:2", str(lab.show), str(file))
    assert done.returncode != 0
    assert not file.exists()
    assert lab.cluster.out_of_service() == {"gpu0": "Prolog error"}
    assert "output:gpulease: node fault: no answer from the agent in 1 s" in lab.node.log()
    lab.cluster.resume()


@pytest.mark.slow
def test_a_batch_job_that_a_drained_node_gave_back_runs_later(lab: Lab) -> None:
    """It is queued again, not held, and has its lease when agent and node are back."""
    lab.settings(deadline=1)
    lab.agent.kill()
    file = lab.file()
    job = lab.cluster.sbatch(f"{lab.show} {file}\nexec sleep 600", "--gres=shard:2")
    lab.cluster.until(lambda: lab.cluster.out_of_service() and lab.cluster.queue().get(job) == "PENDING")
    assert lab.cluster.job(job)["Restarts"] == "1"
    lab.agent.start()
    lab.cluster.resume()
    assert "GPULEASE_ID" in lab.task(file).environment


def test_fail_ends_the_job_and_keeps_the_node(lab: Lab, trouble: str) -> None:
    """on_agent_down=fail: the job fails and says why, none of its code runs, and the node stays."""
    lab.settings(deadline=1, socket=trouble, on_agent_down="fail")
    file = lab.file()
    done = lab.cluster.srun("--gres=shard:2", str(lab.show), str(file))
    assert done.returncode != 0
    assert "gpulease: no answer from the agent in 1 s" in done.stdout
    assert not file.exists()


def test_allow_runs_the_job_without_limits(lab: Lab, trouble: str) -> None:
    """on_agent_down=allow: the job runs in no lease, and its user is told so."""
    lab.settings(deadline=1, socket=trouble, on_agent_down="allow")
    file = lab.file()
    done = lab.cluster.srun("--gres=shard:2", str(lab.show), str(file))
    assert done.returncode == 0, done.stderr
    assert "this job runs without limits" in done.stdout
    assert "gpulease" not in lab.task(file).cgroup


def test_a_job_without_gpus_runs_whatever_the_agent_does(lab: Lab, trouble: str) -> None:
    """A job that has no GPU is not the agent's, and runs under the strictest policy."""
    lab.settings(deadline=1, socket=trouble)
    assert "gpulease" not in lab.run().cgroup
