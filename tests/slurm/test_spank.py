"""The SPANK plugin in a real slurmstepd: programs of a leased job have the hook, whatever they unset."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .agent import ServedAgent
from .cluster import Cluster
from .lab import Lab
from .settings import USERS

pytestmark = pytest.mark.slurm
# Prints whether this very program has the hook, and whose limits it would find.
LOOK = "grep -c /libgpulease /proc/self/maps; stat -c %U /etc/gpulease/limits; cat /etc/ld.so.preload"


SHARD = ("--partition=pair", "--nodelist=gpu1", "--gres=shard:1")


@pytest.fixture
def cluster(plugged: Cluster) -> Cluster:
    """Each of these tests has the plugin."""
    return plugged


@pytest.mark.way_out(
    "`env -i` in a Slurm job, with the plugin", tier="hook", outcome="the hook is in it all the same"
)
def test_who_unsets_everything_has_the_hook_all_the_same(lab: Lab, cluster: Cluster) -> None:
    """Under `env -i`, and with the user's own --task-prolog that unsets LD_PRELOAD; limits are root's."""
    own = lab.file()
    own.write_text("#!/bin/sh\necho unset LD_PRELOAD\n")
    own.chmod(0o755)
    done = cluster.srun(*SHARD, f"--task-prolog={own}", "/usr/bin/env", "-i", "/bin/sh", "-c", LOOK)
    assert done.returncode == 0, done.stderr
    count, owner, *preload = done.stdout.splitlines()
    assert int(count) > 0
    assert owner == "root"
    (hook,) = filter(None, preload)
    assert Path(hook).name.startswith("libgpulease")  # or its copy, where users cannot reach it


def test_the_node_keeps_its_own_preload_and_mounts(fake: ServedAgent, cluster: Cluster) -> None:
    """What the task has is its own: outside nothing changed, and what the node preloads comes first."""
    place = fake.node.path("/etc/ld.so.preload")
    place.write_text("# the site's\n")
    before = fake.node.space.run("cat", "/proc/mounts").stdout
    done = cluster.srun(*SHARD, "cat", "/etc/ld.so.preload")
    assert done.stdout.startswith("# the site's\n")
    assert place.read_text() == "# the site's\n"
    assert fake.node.space.run("cat", "/proc/mounts").stdout == before
    assert not fake.node.path("/etc/gpulease/limits").exists()


def test_a_user_can_take_neither_mount_away(cluster: Cluster) -> None:
    """umount is refused; so is writing to what is mounted."""
    script = "umount /etc/ld.so.preload || umount /etc/gpulease || echo >/etc/gpulease/limits || echo refused"
    assert cluster.srun(*SHARD, "sh", "-c", script).stdout == "refused\n"


def test_a_job_without_a_lease_is_left_alone(cluster: Cluster) -> None:
    """A job of no GPU starts as without the plugin."""
    done = cluster.srun(*SHARD[:2], "sh", "-c", "cat /etc/ld.so.preload; ls /etc/gpulease")
    assert (done.returncode, done.stdout) == (0, "")


def test_a_record_that_cannot_be_obeyed_fails_the_task_and_not_the_node(
    fake: ServedAgent, cluster: Cluster
) -> None:
    """Cut off, too long, of places that are not there, a user's: the task fails, and the node stays."""
    job = cluster.sbatch("exec sleep 600", *SHARD)
    path = fake.node.path(f"/run/nodeagent/slurm/hook/{job}")
    cluster.until(lambda: path.exists() and cluster.job(job)["JobState"] == "RUNNING")
    step = ("--partition=pair", f"--jobid={job}", "--overlap", "--gres=none", "true")
    assert cluster.srun(*step).returncode == 0
    good = path.read_text()
    for bad in ("", "/nowhere /nothing", "one", "x" * 600):
        path.write_text(bad)
        assert cluster.srun(*step).returncode != 0, bad
    path.write_text(good)
    os.chown(path, USERS["alice"], USERS["alice"])
    assert cluster.srun(*step).returncode != 0
    os.chown(path, 0, 0)
    assert cluster.srun(*step).returncode == 0
    cluster.cancel(job)
