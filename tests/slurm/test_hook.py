"""A job on a node whose kernel is imitated: the hook keeps it to its share."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from .agent import ServedAgent
from .lab import Lab

pytestmark = [pytest.mark.slurm, pytest.mark.hook]
PROGRAM = Path(__file__).parents[1] / "hook/gpu.py"
GIB = 1 << 30


def allocate(lab: Lab, *expressions: str, user: str) -> list[object]:
    """What a job of one shard answers to expressions of the hook's test program."""
    program = lab.file()
    shutil.copy(PROGRAM, program)
    job = ("--partition=pair", "--nodelist=gpu1", "--gres=shard:1")
    said = lab.cluster.srun(*job, "/usr/bin/python3", str(program), user=user, input="\n".join(expressions))
    return [json.loads(line) for line in said.stdout.splitlines()]


def test_a_job_is_refused_what_is_over_its_share(lab: Lab, fake: ServedAgent) -> None:
    """A job of one shard gets memory up to an eighth of its GPU and is refused more; another runs on."""
    gpu = fake.call("GET", "/v1/devices")["devices"][0]["gpu_id"]
    share = fake.call("GET", "/v1/devices")["devices"][0]["grantable_bytes"] // 8
    first = allocate(lab, f"alloc({share // 2}, {gpu})", f"alloc({share}, {gpu})", user="alice")
    assert isinstance(first[0], int)
    assert first[1] == "ENOMEM"
