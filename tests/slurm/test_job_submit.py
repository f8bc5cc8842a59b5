"""job_submit.lua in the real slurmctld: the word says what Slurm charges for, and nobody forges it."""

from __future__ import annotations

import pytest

from .lab import Lab
from .versions import FIELD

pytestmark = pytest.mark.slurm

GRAIN = 2 << 20
HELD = ("--hold", "--nodelist=gpu0")
HOSTILE = "gpulease:shards=8;$(touch /tmp/x)\n`id` '\" \x1b[31m gpulease:gpus"


def text_of(lab: Lab, job: str) -> str:
    """The text with the word that a job has by now, as scontrol shows it."""
    shown = lab.cluster.slurm("scontrol", "show", "job", job).stdout
    lines = [line.strip() for line in shown.splitlines()]
    name = f"{FIELD.capitalize()}="
    return next((line.removeprefix(name) for line in lines if line.startswith(name)), "")


def update(lab: Lab, job: str, *changes: str, user: str = "alice") -> str:
    """What scontrol says of a user's change of an own job."""
    done = lab.cluster.slurm("scontrol", "update", f"JobId={job}", *changes, user=user)
    return done.stderr + done.stdout


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--gres=shard:2"], "gpulease:shards=2"),
        (["--gres=shard:mi300x:3"], "gpulease:shards=3"),
        (["--gres=gpu:1"], "gpulease:gpus"),
        (["--gres=gpu:mi300x:2"], "gpulease:gpus"),
        (["--gpus=1"], "gpulease:gpus"),
        (["--gpus-per-task=1", "--ntasks=2"], "gpulease:gpus"),
        (["--exclusive"], "gpulease:gpus"),
        ([], ""),
        (
            ["--gres=shard:2", f"--{FIELD}=gpulease:cu=5%,vram=8G mine"],
            "gpulease:shards=2,vram=8G,cu=5% mine",
        ),
    ],
)
def test_the_word_is_what_slurm_charges_for(lab: Lab, options: list[str], word: str) -> None:
    """Each way to ask for GPUs, as this Slurm passes it on."""
    job = lab.cluster.sbatch("true", *HELD, *options)
    assert text_of(lab, job) == word
    lab.cluster.cancel(job)


def test_a_batch_jobs_environment_is_a_way_to_ask(lab: Lab) -> None:
    """GPULEASE needs no option of sbatch."""
    script = "#!/bin/sh\ntrue\n"
    words = ("sbatch", "--parsable", "--output=/dev/null", *HELD, "--gres=shard:2")
    done = lab.cluster.slurm(*words, user="alice", input=script, env={"GPULEASE": "vram=4G"})
    job = done.stdout.strip()
    assert text_of(lab, job) == "gpulease:shards=2,vram=4G"
    lab.cluster.cancel(job)


def test_a_user_forges_nothing_by_a_change(lab: Lab) -> None:
    """scontrol update of the comment: the word follows the size alone."""
    job = lab.cluster.sbatch("true", *HELD, "--gres=shard:2", f"--{FIELD}={HOSTILE}")
    before = text_of(lab, job)
    assert "error" in update(lab, job, f"{FIELD}=gpulease:cu=lots")  # 22.05's scontrol shows no reason
    assert text_of(lab, job) == before
    for text in ("gpulease:shards=8", HOSTILE.replace("\n", " "), "gpulease:gpus", "", "x gpulease:shards=8"):
        update(lab, job, f"{FIELD}={text}")
        assert text_of(lab, job).startswith("gpulease:shards=2")
        assert text_of(lab, job).count("gpulease:") == 1
    lab.cluster.cancel(job)


@pytest.mark.parametrize(
    "changes",
    [
        ("Gres=shard:4",),
        ("Gres=shard:4", "Nice=-100"),  # Slurm takes over the comment, and then refuses the rest
        ("Gres=shard:4", "Deadline=2020-01-01"),
        ("Gres=shard:7,shard:2",),
        ("TresPerNode=shard:7,gres:shard:2",),
        ("TresPerNode=xgres:shard:2,gpu:1",),
        ("TresPerNode=gres/shard=7,gres:shard:2",),
    ],
)
def test_the_word_outruns_no_change_of_the_size(lab: Lab, changes: tuple[str, ...]) -> None:
    """Threat 3: whatever becomes of a change, the word is no more than what Slurm charges for."""
    job = lab.cluster.sbatch("true", *HELD, "--gres=shard:2")
    assert "error" in update(lab, job, *changes)
    assert text_of(lab, job) == "gpulease:shards=2"
    assert lab.cluster.job(job)["TresPerNode"].replace("gres/", "gres:") == "gres:shard:2"  # from 23.02 on
    lab.cluster.cancel(job)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--gres=shard:2", f"--{FIELD}=gpulease:vram=much"], "write gpulease:vram=8G,cu=25%"),
        (["--gres=gpu:1", f"--{FIELD}=gpulease:vram=8G"], "ask for --gres=shard:N"),
        (["--gres=shard:7,shard:1"], "ask for shards once"),  # Slurm would charge for one
        (["--gres=shard:010"], "ask for shards as --gres=shard:N"),
    ],
)
def test_a_refusal_reaches_the_user(lab: Lab, options: list[str], why: str) -> None:
    """srun prints the reason with what to write instead, and no job is made."""
    done = lab.cluster.srun(*options, "true")
    assert done.returncode != 0
    assert why in done.stderr
    assert lab.cluster.queue() == {}


@pytest.mark.parametrize(
    ("said", "cus", "vram"),
    [("", 64, None), ("gpulease:shards=8", 64, None), ("gpulease:shards=8,vram=8G,cu=13%", 32, 8 << 30)],
)
def test_the_lease_is_what_was_paid_for(lab: Lab, said: str, cus: int, vram: int | None) -> None:
    """Threat 3: two of eight shards of an MI300X are two rows of CUs, whatever the comment claims."""
    task = lab.hold("--gres=shard:2", f"--{FIELD}={said}")
    lease = lab.agent.lease(task.job)
    assert lease is not None
    (piece,) = lease["slices"]
    assert piece["cu_count"] == cus
    quarter = lab.agent.device(piece["device"])["grantable_bytes"] // 4
    assert quarter - GRAIN <= piece["vram_bytes"] <= quarter if vram is None else piece["vram_bytes"] == vram
    lab.cluster.cancel(task.job)
