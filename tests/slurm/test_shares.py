"""Jobs with shards, whole GPUs, or none: the leases that they get, and what their tasks see."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.domain.cuset import CuSet

from .lab import Lab, Task
from .settings import SHARDS

pytestmark = pytest.mark.slurm


def slices(lab: Lab, task: Task) -> list[dict[str, Any]]:
    """The slices of a job's lease."""
    lease = lab.agent.lease(task.job)
    assert lease is not None, lab.agent.log()
    return lease["slices"]


def test_two_jobs_share_a_gpu_by_their_shards(lab: Lab) -> None:
    """shard:2 and shard:4 of one GPU get a quarter and half of its memory and CUs, none of them in common."""
    small = lab.hold("--gres=shard:2", user="alice")
    large = lab.hold("--gres=shard:4", user="bob")
    (quarter,), (half,) = slices(lab, small), slices(lab, large)
    assert quarter["device"] == half["device"]
    grantable = lab.agent.device(quarter["device"])["grantable_bytes"]
    for part, shards in ((quarter, 2), (half, 4)):
        share = grantable * shards / SHARDS
        assert share - (2 << 20) <= part["vram_bytes"] <= share
        assert part["cu_count"] == 32 * (304 * shards // SHARDS // 32)
    assert not CuSet.parse(quarter["cus"]) & CuSet.parse(half["cus"])


def test_a_task_sees_its_lease(lab: Lab) -> None:
    """A task has its lease's variables, exactly one that chooses devices, and is in the lease's cgroup."""
    task = lab.hold("--gres=shard:2")
    lease = lab.agent.lease(task.job)
    assert lease is not None
    seen = {name: task.environment.get(name) for name in lease["environment"]}
    assert seen == lease["environment"]
    assert task.environment["HSA_CU_MASK"] == f"0:{lease['slices'][0]['cus']}"
    assert task.cgroup == lease["cgroup"]


def test_whole_gpus_are_whole_devices(lab: Lab) -> None:
    """A job of two GPUs gets both devices without a mask; each task sees both."""
    task = lab.hold("--gres=gpu:2")
    parts = slices(lab, task)
    assert len({part["device"] for part in parts}) == 2
    assert all(part["exclusive"] and part["cu_count"] == 304 for part in parts)
    assert len(task.environment["ROCR_VISIBLE_DEVICES"].split(",")) == 2
    assert "HSA_CU_MASK" not in task.environment


@pytest.mark.parametrize("node", ["gpu0", "cpu0"])
def test_a_job_without_gpus_has_no_lease(lab: Lab, node: str) -> None:
    """It runs on either node, in no lease, and nobody asks the agent."""
    lab.agent.pause()
    task = lab.run(f"--nodelist={node}")
    lab.agent.resume()
    assert "gpulease" not in task.cgroup
    assert "GPULEASE_ID" not in task.environment
    assert lab.agent.leases() == []
