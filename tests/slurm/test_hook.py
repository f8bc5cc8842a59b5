"""A job on a node whose kernel is imitated: the hook keeps it to its share, where it is loaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from .agent import ServedAgent
from .lab import Lab

pytestmark = [pytest.mark.slurm, pytest.mark.hook]
PROGRAM = Path(__file__).parents[1] / "hook/gpu.py"
JOB = ("--partition=pair", "--nodelist=gpu1", "--gres=shard:1")


@pytest.fixture
def program(lab: Lab) -> str:
    """The hook's test program, for every user: it answers expressions on its input."""
    path = lab.file()
    shutil.copy(PROGRAM, path)
    return str(path)


def answers(lab: Lab, *words: str, asked: tuple[str, ...]) -> list[Any]:
    """What the program answers that a command of Slurm's starts."""
    done = lab.cluster.slurm(*words, user="alice", input="\n".join(asked))
    return [json.loads(line) for line in done.stdout.splitlines()]


def sizes(fake: ServedAgent) -> tuple[str, str]:
    """Expressions that allocate half of a share of one shard, and more than that share."""
    device = fake.call("GET", "/v1/devices")["devices"][0]
    share, gpu = device["grantable_bytes"] // 8, device["gpu_id"]
    return f"alloc({share // 2}, {gpu})", f"alloc({share}, {gpu})"


def test_a_job_is_refused_what_is_over_its_share(lab: Lab, fake: ServedAgent, program: str) -> None:
    """A job of one shard gets memory up to an eighth of its GPU and is refused more; a neighbour runs on."""
    neighbour = lab.hold(*JOB, user="bob")
    some, more = answers(lab, "srun", *JOB, "/usr/bin/python3", program, asked=sizes(fake))
    assert isinstance(some, int)
    assert more == "ENOMEM"
    assert lab.cluster.queue()[neighbour.job] == "RUNNING"


@pytest.mark.way_out(
    "`srun --task-prolog` that unsets LD_PRELOAD, without the plugin",
    tier="hook",
    outcome="**got through:** VRAM over the share. With the plugin the hook is in it",
)
def test_a_task_prolog_can_take_the_hook_away(lab: Lab, fake: ServedAgent, program: str) -> None:
    """The user's own task-prolog comes last: without root's plugin what it unsets is gone."""
    own = lab.public("#!/bin/sh\necho unset LD_PRELOAD\n")
    words = ("srun", *JOB, f"--task-prolog={own}", "/usr/bin/python3", program)
    _, more = answers(lab, *words, asked=sizes(fake))
    assert isinstance(more, int)


@pytest.mark.way_out(
    "`srun --gres=none` in a Slurm allocation, without the plugin",
    tier="hook",
    outcome="**got through:** the step is in no lease, as one without GPUs. ConstrainDevices=yes closes it",
)
def test_a_step_without_gres_is_in_no_lease(lab: Lab, fake: ServedAgent, program: str) -> None:
    """Slurm tells its task-prolog of no GPU: only Slurm's own device fence keeps such a step off."""
    words = ("salloc", *JOB, "srun", "--gres=none", "/usr/bin/python3", program)
    _, more = answers(lab, *words, asked=sizes(fake))
    assert isinstance(more, int)
