"""Jobs of a real Slurm on a real dmem controller: each has its share, no more, and nothing of it stays."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.rig.slurm.site import as_user, command, until
from tests.rig.wired import limit

pytestmark = pytest.mark.rig
JOBS = int(os.environ.get("NODEAGENT_RIG_JOBS", "1000"))


def test_two_jobs_share_a_gpu_and_each_is_held_to_its_shards(site, agent, gpus) -> None:
    """shard:2 beside shard:4: who allocates beyond its share is refused, and the other runs on."""
    two, four = site.shards(2), site.shards(4)
    assert two.node == four.node
    leases = [agent.lease(task.job) for task in (two, four)]
    small, large = (lease["slices"][0] for lease in leases)
    assert small["device"] == large["device"]
    assert large["vram_bytes"] == pytest.approx(2 * small["vram_bytes"], abs=4 << 20)
    assert [lease["guarantee"]["memory"] for lease in leases] == ["kernel", "kernel"]
    for task, given in ((two, small), (four, large)):
        assert limit(site.cgroup(task.job), gpus(task.node).region) == str(given["vram_bytes"])
    assert two.do(f"alloc {small['vram_bytes']}") == "ok"
    assert two.do("alloc 4096") == "refused"
    assert four.do(f"alloc {large['vram_bytes'] - (64 << 20)}") == "ok"
    assert two.do("free all") == "ok"
    assert two.do("alloc 4096") == "ok"


def test_a_task_sees_its_mask_and_its_device(site, agent) -> None:
    """The mask and the one visibility setting are the lease's; what Slurm set beside it is gone."""
    task = site.shards(2)
    environment = agent.lease(task.job)["environment"]
    assert environment["HSA_CU_MASK"].startswith("0:")
    for name in ("HSA_CU_MASK", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"):
        assert task.do(f"show {name}") == (environment[name] or "")


def test_a_limit_is_there_before_the_first_step(site, agent) -> None:
    """An allocation without a step has its limit, which holds what is started in it later."""
    salloc = subprocess.Popen(
        as_user("salloc", "--gres=shard:1", "--extra=gpulease:shards=1", "sleep", "600"), cwd="/"
    )
    try:
        (lease,) = until(agent.leases)
        cgroup = site.cgroup(lease["holder"]["id"])
        limits = (cgroup / "dmem.max").read_text().split()
        assert str(lease["slices"][0]["vram_bytes"]) in limits
    finally:
        salloc.terminate()
        salloc.wait()


def test_who_is_adopted_is_held_with_the_job(site, agent, gpus) -> None:
    """A login that is taken into the extern step, as pam_slurm_adopt does, shares the job's limit."""
    task = site.shards(1)
    (given,) = agent.lease(task.job)["slices"]
    step = site.cgroup(task.job) / "step_extern/user/task_special"
    made = not step.exists()  # Slurm 24.11 has its own process in there, 26.05 none
    step.mkdir(parents=True, exist_ok=True)
    adopt = ("sh", "-c", f'echo $$ >{step}/cgroup.procs && exec "$@"', "adopt")

    def take(size: int) -> bool:
        script = f"exec 3<>{task.node}; printf 'alloc {size}' >&3"
        done = subprocess.run([*adopt, *as_user("sh", "-c", script)], check=False, capture_output=True)
        return done.returncode == 0

    assert task.do(f"alloc {given['vram_bytes'] - 4096}") == "ok"
    assert take(4096)
    assert not take(8192)
    if made:
        until(lambda: "populated 0" in (step / "cgroup.events").read_text())
        step.rmdir()


def test_scancel_takes_all_that_a_job_left(site, agent) -> None:
    """A job that forks away, ignores SIGTERM and holds VRAM leaves nothing."""
    script = """#!/bin/sh
for node in /dev/dri/renderD*; do (: <>"$node") 2>/dev/null && break; done
trap '' TERM
setsid sh -c "trap '' TERM; exec 3<>$node; printf 'alloc 1G' >&3; sleep 3600 & wait" &
sleep 3600
"""
    options = ("--parsable", "--output=/dev/null", "--gres=shard:2", "--extra=gpulease:shards=2")
    sbatch = subprocess.run(
        as_user("sbatch", *options), input=script, capture_output=True, text=True, check=True, cwd="/"
    )
    job = sbatch.stdout.strip()
    until(lambda: [one for one in agent.leases() if one["holder"]["id"] == job], site.trouble)
    cgroup = site.cgroup(job)
    until(lambda: any(int(line.split()[1]) for line in (cgroup / "dmem.current").read_text().splitlines()))
    command("scancel", job)
    until(lambda: job not in site.jobs(), site.trouble)
    until(lambda: not agent.leases(), agent.leases)
    assert not cgroup.exists()


def test_a_requeued_job_gets_its_slice_again(site, agent) -> None:
    """Under the same job id, in a new lease, with a limit before it runs."""
    options = ("--parsable", "--output=/dev/null", "--gres=shard:2", "--extra=gpulease:shards=2", "--requeue")
    job = command(*as_user("sbatch", *options, "--wrap=exec sleep 3600"))
    (first,) = until(agent.leases, site.trouble)
    command("scontrol", "requeue", job)
    (again,) = until(
        lambda: [one for one in agent.leases() if one["id"] != first["id"] and one["state"] == "active"],
        site.trouble,
    )
    assert again["holder"] == first["holder"]
    assert str(again["slices"][0]["vram_bytes"]) in (site.cgroup(job) / "dmem.max").read_text().split()


def test_a_job_outlives_slurmd_with_its_limit(site, agent) -> None:
    """slurmd killed and started again: the job runs on, within its share, and ends as any."""
    task = site.shards(1)
    (given,) = agent.lease(task.job)["slices"]
    command("systemctl", "kill", "--signal=KILL", "slurmd")
    until(lambda: command("systemctl", "show", "-P", "SubState", "slurmd") != "running")
    command("systemctl", "restart", "slurmd")
    assert task.do(f"alloc {given['vram_bytes']}") == "ok"
    assert task.do("alloc 4096") == "refused"


def test_systemd_reloading_itself_takes_no_limit_away(site, agent, gpus) -> None:
    """After daemon-reload a job's limit is what it was, and a new job gets one."""
    first = site.shards(1)
    command("systemctl", "daemon-reload")
    second = site.shards(1)
    for task in (first, second):
        (given,) = agent.lease(task.job)["slices"]
        assert limit(site.cgroup(task.job), gpus(task.node).region) == str(given["vram_bytes"])


def test_who_holds_no_job_gets_nothing(site, agent, gpus, tmp_path: Path) -> None:
    """A user outside jobs is refused every byte, while a job beside it has its share."""
    task = site.shards(1)
    outside = as_user("sh", "-c", f"exec 3<>{task.node}; printf 'alloc 4096' >&3")
    session = Path("/sys/fs/cgroup/user.slice/rig-outside")
    session.mkdir(exist_ok=True)
    try:
        enter = ("sh", "-c", f'echo $$ >{session}/cgroup.procs && exec "$@"', "enter")
        assert subprocess.run([*enter, *outside], check=False, capture_output=True).returncode
    finally:
        until(lambda: not (session / "cgroup.procs").read_text())
        session.rmdir()
    assert task.do("alloc 4096") == "ok"


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_many_short_jobs_leave_nothing(site, agent) -> None:
    """Three at once, each with a lease of its own that is released: no cgroup, no drained node."""
    options = ("--output=/dev/null", "--gres=shard:1", "--extra=gpulease:shards=1", f"--array=1-{JOBS}%3")
    before = {lease["id"] for lease in agent.leases("released")}
    command(*as_user("sbatch", *options, "--wrap=true"))
    while site.jobs():
        assert site.state() != "drained", site.trouble()
        time.sleep(20)  # squeue and sinfo are emulated, too
    released = [lease for lease in agent.leases("released") if lease["id"] not in before]
    assert len({lease["holder"]["id"] for lease in released}) == len(released) == JOBS
