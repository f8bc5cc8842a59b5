"""Tasks of jobs: which job's they are, where they are let in, and what they are told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from service_builders import House, user
from slurm_world import NODE, Scope, Site

from nodeagent.domain.errors import NotAllowed
from nodeagent.domain.lease import LeaseState
from nodeagent.domain.slurm import Word
from nodeagent.service.cgroup_effects import cgroup_in

pytestmark = [pytest.mark.cgroup2, pytest.mark.root]


@pytest.fixture
def site(home: House, scope: Scope) -> Site:
    return Site(home)


def task(site: Site, caller, **told: object) -> list[str]:
    body = b"".join(f"{name}={value}\0".encode() for name, value in told.items())
    return list(site.house.agent.slurm.task(caller, body))


def test_a_task_is_known_by_its_jobs_cgroup(site, scope, children):
    """Whatever number it says, a task in a job's cgroup is of that job, and gets its environment."""
    lease, other = site.granted(uid=1000), site.granted(job=43, uid=1000)
    peer = children.peer(1000)
    scope.step(peer.pid)
    lines = task(site, peer, SLURM_JOB_ID=43)
    assert f"export GPULEASE_ID={lease.id}" in lines
    assert f"export GPULEASE_ID={other.id}" not in lines
    assert "unset HIP_VISIBLE_DEVICES" in lines


def test_a_task_outside_its_jobs_cgroup_must_not_run(site, scope, children):
    """No limit would hold it: that is said, and its task-prolog fails it."""
    site.granted(uid=1000)
    with pytest.raises(NotAllowed, match="is not in there"):
        task(site, children.peer(1000), SLURM_JOB_ID=42)


def test_a_component_of_a_heterogeneous_job_is_one_of_its_own(site, scope, children):
    """Each is in its own job's cgroup, whatever both tasks say; one ends without the other."""
    leases = {job: site.granted(job=job, uid=1000, SLURM_HET_JOB_ID=42) for job in (42, 43)}
    for job, lease in leases.items():
        peer = children.peer(1000)
        scope.step(peer.pid, name=f"job_{job}")
        told = task(site, peer, SLURM_JOB_ID=42, SLURM_HET_JOB_ID=42)
        assert f"export GPULEASE_ID={lease.id}" in told
        children.end(peer.pid)
    assert site.epilog(job=43, uid=1000, SLURM_HET_JOB_ID=42).word is Word.RELEASED
    assert site.leases(42)[0].state is LeaseState.ACTIVE


@pytest.mark.parametrize(
    ("given", "sees"), [("1", [1]), ("0", [0]), ("0,1", [0, 1]), ("", [0, 1]), ("7", [0, 1]), ("0,7", [0, 1])]
)
def test_a_task_of_fewer_gpus_than_its_job_sees_those(site, scope, children, given, sees):
    """By their places in gres.conf, as Slurm bound it; with a number that is not the job's it sees all."""
    site.configure(shards=0)
    lease = site.granted(uid=1000, SLURM_JOB_GPUS="0,1")
    peer = children.peer(1000)
    scope.step(peer.pid)
    lines = task(site, peer, SLURM_JOB_ID=42, SLURM_STEP_GPUS=given, SLURMD_NODENAME=NODE)
    visible = lease.environment["ROCR_VISIBLE_DEVICES"].split(",")
    assert len(set(visible)) == 2
    assert f"export ROCR_VISIBLE_DEVICES={','.join(visible[at] for at in sees)}" in lines


def test_limits_are_there_before_a_steps_code(site, scope, children):
    """A directory that Slurm made since the last look is limited before the task's program starts."""
    lease = site.granted(uid=1000)
    scope.directory().rmdir()
    peer = children.peer(1000)
    scope.step(peer.pid)
    task(site, peer, SLURM_JOB_ID=42)
    ref = cgroup_in(site.house.ledger.effects(lease.id))
    assert ref.inode == scope.directory().stat().st_ino


def test_another_users_task_has_no_lease(site, scope, children):
    """A user in another's job, by its number or its directory, gets nothing of it."""
    site.granted(uid=1000)
    stranger = children.peer(1001)
    scope.step(stranger.pid)
    assert task(site, stranger, SLURM_JOB_ID=42) == ["none"]
    with pytest.raises(NotAllowed):
        task(site, user(0), SLURM_JOB_ID=42)


def test_without_slurms_cgroups_the_task_itself_is_moved(home, stepds):
    """The task is moved, and not its task-prolog: what it starts later is in the lease."""
    site = Site(home)
    lease = site.granted(uid=1000)
    assert lease.cgroup.startswith(home.tree.instance)
    prolog = stepds.task(1000)
    lines = task(site, prolog, SLURM_JOB_ID=42)
    assert f"export GPULEASE_ID={lease.id}" in lines
    (moved,) = home.procs(lease)
    assert Path(f"/proc/{moved}/exe").readlink().name == "slurmstepd"
    assert moved != prolog.pid
    assert task(site, prolog, SLURM_JOB_ID=42) == lines
    assert home.kinds(lease).count("attached") == 1
    assert site.epilog().word is Word.RELEASED


def test_only_a_task_of_slurm_is_moved(home, stepds, children):
    """Not a user's own process, and not one under a slurmstepd that the user started."""
    site = Site(home)
    lease = site.granted(uid=1000)
    for caller in (children.peer(1000), stepds.task(1000, daemon=1000)):
        with pytest.raises(NotAllowed, match="Slurm started"):
            task(site, caller, SLURM_JOB_ID=42)
    assert home.procs(lease) == ()


def test_a_task_says_which_of_its_users_jobs_it_is(home, stepds):
    """A hint is enough among one's own jobs; another's number, or none, gives nothing."""
    site = Site(home)
    first, second = site.granted(uid=1000), site.granted(job=43, uid=1000)
    site.granted(job=44, uid=1001)
    prolog = stepds.task(1000)
    assert task(site, prolog, SLURM_JOB_ID=44) == ["none"]
    assert task(site, prolog) == ["none"]
    assert f"export GPULEASE_ID={second.id}" in task(site, prolog, SLURM_JOB_ID=43)
    assert len(home.procs(second)) == 1
    assert home.procs(first) == ()


@pytest.mark.parametrize("theirs", ["/opt/x.so", "$(id)", "a b", ""])
def test_a_task_keeps_its_own_preload_behind_ours(home, stepds, monkeypatch, theirs):
    """Threat 2: of a user's text only what no shell acts on comes back, and never as another variable."""
    site = Site(home)
    lease = site.granted(uid=1000)
    given = {
        **lease.environment,
        "LD_PRELOAD": "/usr/lib/libgpulease.so",
        "EVIL": "1",
        "GPULEASE_HOOK": "a b",
    }
    with home.ledger.write() as tx:
        tx._change_lease(lease.id, {"environment": json.dumps(given)})
    lines = task(site, stepds.task(1000), SLURM_JOB_ID=42, LD_PRELOAD=theirs)
    expected = "/usr/lib/libgpulease.so" + (f":{theirs}" if theirs == "/opt/x.so" else "")
    assert f"export LD_PRELOAD={expected}" in lines
    assert not [line for line in lines if "EVIL" in line or "GPULEASE_HOOK" in line]


def test_indexes_count_from_zero_where_slurm_closes_other_gpus(home, stepds):
    """With ConstrainDevices a task sees its own GPUs alone: in the node's order, numbered anew."""
    site = Site(home)
    lease = site.granted(uid=1000, gpus="0,1")
    with home.ledger.write() as tx:
        given = {**lease.environment, "ROCR_VISIBLE_DEVICES": "3,1"}
        tx._change_lease(lease.id, {"environment": json.dumps(given)})
    prolog = stepds.task(1000)
    assert "export ROCR_VISIBLE_DEVICES=3,1" in task(site, prolog, SLURM_JOB_ID=42)
    (home.root / "etc/slurm/cgroup.conf").write_text("ConstrainDevices=Yes\n")
    assert "export ROCR_VISIBLE_DEVICES=1,0" in task(site, prolog, SLURM_JOB_ID=42)
