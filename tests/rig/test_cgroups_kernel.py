"""adapters/cgroup.py and adapters/limits.py on a kernel that has every controller."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from nodeagent.adapters.limits import Limits, apply, effective_limits, loosens

pytestmark = pytest.mark.rig

MIB = 2**20
JOB = Limits(
    memory_max=256 * MIB,
    memory_high=192 * MIB,
    pids_max=20,
    cpu_max=Fraction(1, 2),
    cpuset_cpus=frozenset({0}),
)


@pytest.fixture
def job(rig) -> Iterator[Path]:
    """The cgroup of a batch system's job, with a limit of each kind."""
    top = rig.tree.mount
    (top / "cgroup.subtree_control").write_text("+cpu +cpuset +memory +pids")
    directory = top / "job_1"
    directory.mkdir()
    (directory / "memory.max").write_text(str(JOB.memory_max))
    (directory / "memory.high").write_text(str(JOB.memory_high))
    (directory / "pids.max").write_text(str(JOB.pids_max))
    (directory / "cpu.max").write_text("50000 100000")
    (directory / "cpuset.cpus").write_text("0")
    try:
        yield directory
    finally:
        directory.rmdir()


def test_a_job_s_limits_are_read_from_below(rig, job):
    """A cgroup without limits of its own has those above it."""
    inner = job / "step_0"
    inner.mkdir()
    try:
        assert effective_limits(rig.tree, "/job_1/step_0") == JOB
    finally:
        inner.rmdir()


def test_a_lease_takes_over_the_limits_of_the_job(rig, job):
    """Each is in force on the lease, its controller enabled as needed; the next apply changes nothing."""
    lease = rig.lease(1)
    assert apply(rig.tree, lease, effective_limits(rig.tree, "/job_1")) == ()
    taken = effective_limits(rig.tree, lease.path)
    assert loosens(JOB, taken) == ()
    assert taken == JOB
    assert apply(rig.tree, lease, JOB) == ()


def test_the_copied_limit_binds(rig, job):
    """More processes than the job had are refused in the lease, too."""
    lease = rig.lease(1)
    assert apply(rig.tree, lease, JOB) == ()
    enter = f"echo $$ > {rig.directory(lease)}/cgroup.procs"
    script = f"{enter}; for i in $(seq 40); do sleep 60 2>/dev/null & done"
    ran = subprocess.run(
        ["sh", "-c", script], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, check=False
    )
    assert ran.returncode != 0
    assert "fork" in ran.stderr
    assert "max 0" not in (rig.directory(lease) / "pids.events").read_text()


def test_a_lease_s_cgroup_lives_and_goes_with_all_in_it(rig, eventually):
    """Made, found again, killed with its nested cgroups, removed."""
    lease = rig.lease(1)
    inner = rig.directory(lease) / "a" / "b"
    inner.mkdir(parents=True)
    holder = rig.holder(rig.gpus[0], inner)
    assert rig.tree.existing() == {1: lease}
    assert rig.tree.cgroup_of(holder.pid) == f"{lease.path}/a/b"
    with rig.tree.open(lease) as cgroup:
        cgroup.kill()
        eventually(lambda: not cgroup.populated())
    rig.tree.remove(lease)
    assert rig.tree.find(1) is None


def test_two_leases_in_one_job_are_kept_apart(rig, job):
    """A lease's cgroup inside the job's is found there, and not in the instance's subtree."""
    nested = rig.tree.create(5, "/job_1")
    assert rig.tree.find(5, "/job_1") == nested
    assert rig.tree.find(5) is None
    assert loosens(JOB, effective_limits(rig.tree, nested.path)) == ()
    rig.tree.remove(nested)
