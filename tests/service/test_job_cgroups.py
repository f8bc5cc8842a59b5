"""Leases in jobs' own cgroups, which Slurm makes, fills and ends as it likes, and tasks that enter ours."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from service_builders import GIB, House, admin, until, user
from slurm_world import NODE, Site, Stepds
from test_kernel_tier import Dmem

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.domain.errors import NotAllowed, OutsideFault
from nodeagent.domain.lease import Lease, LeaseState
from nodeagent.domain.slurm import Word
from nodeagent.service.cgroup_effects import cgroup_in
from nodeagent.service.job_effects import Heirs, JobDmemEffect

pytestmark = [pytest.mark.cgroup2, pytest.mark.root]


class Scope:
    """Slurm's cgroup on the real mount, and a slurmd's acts in it."""

    def __init__(self, tree: CgroupTree, path: str) -> None:
        self.tree = tree
        self.path = path

    def directory(self, name: str = "job_42") -> Path:
        return self.tree.mount / self.path[1:] / name

    def step(self, pid: int, name: str = "job_42", step: str = "step_0") -> None:
        """Put a process into a step of the job, as slurmstepd does: existing directories are well."""
        place = self.directory(name) / step
        place.mkdir(parents=True, exist_ok=True)
        (place / "cgroup.procs").write_text(str(pid))

    def end_step(self, name: str = "job_42", step: str = "step_0") -> None:
        """Remove the step, and the job's directory with it, as slurmstepd does once they are empty."""
        (self.directory(name) / step).rmdir()
        self.directory(name).rmdir()


@pytest.fixture
def scope(tree: CgroupTree) -> Iterator[Scope]:
    """A scope of a node name that no other agent looks for."""
    outer = tree.mount / f"slurmtest{secrets.token_hex(4)}.slice"
    inner = outer / f"{NODE}_slurmstepd.scope"
    inner.mkdir(parents=True)
    yield Scope(tree, f"/{outer.name}/{inner.name}")
    left = tree.resolve(f"/{outer.name}")
    with tree.open(left) as cgroup:
        cgroup.kill()
        until(lambda: not cgroup.populated())
        cgroup.remove()


@pytest.fixture
def site(home: House, scope: Scope) -> Site:
    return Site(home)


@pytest.fixture
def stepds() -> Iterator[Stepds]:
    """In a directory that every user reaches."""
    directory = Path("/tmp") / f"nodeagent-stepd-{secrets.token_hex(6)}"
    directory.mkdir(mode=0o755)
    made = Stepds(directory)
    yield made
    made.end()
    for one in directory.iterdir():
        one.unlink()
    directory.rmdir()


def where(site: Site, lease: Lease) -> tuple[str, int]:
    """Path and inode of the lease's cgroup, as recorded."""
    ref = cgroup_in(site.house.ledger.effects(lease.id))
    return ref.path, ref.inode


def test_a_jobs_cgroup_is_there_before_the_job(site, scope):
    """The prolog makes the directory that Slurm is about to use, and the lease is held by it."""
    lease = site.granted()
    assert lease.cgroup == f"{scope.path}/job_42"
    assert scope.directory().stat().st_ino == where(site, lease)[1]
    assert site.epilog().word is Word.RELEASED
    assert not scope.directory().exists()


def test_what_slurm_made_is_slurms_to_remove(site, scope):
    """A directory that was there before, as with RunInJob, stays when the lease goes."""
    scope.directory().mkdir()
    site.granted()
    assert site.epilog().word is Word.RELEASED
    assert scope.directory().exists()


def test_a_newer_slurms_name_is_found(site, scope):
    """From 26.05 on the directory has the SLUID; an empty one of the other name changes nothing."""
    told = {"SLURM_JOB_SLUID": "s5K1KKYAYG5D00", "SLURM_JOB_QOS": "normal"}
    lease = site.granted(**told)
    assert lease.cgroup == f"{scope.path}/s5K1KKYAYG5D00"
    scope.directory("job_42").mkdir()
    site.house.reconciler.run_once()
    assert where(site, lease)[0] == f"{scope.path}/s5K1KKYAYG5D00"


def test_the_directory_in_use_counts(site, scope, children):
    """With CgroupJobIdPaths=yes Slurm uses the other name: the limits move there, and ours goes."""
    lease = site.granted(SLURM_JOB_SLUID="s5K1KKYAYG5D00", SLURM_JOB_QOS="normal")
    scope.step(children.sleeper().pid)
    site.house.reconciler.run_once()
    assert where(site, lease)[0] == f"{scope.path}/job_42"
    assert not scope.directory("s5K1KKYAYG5D00").exists()


def test_a_directory_that_slurm_removed_is_there_for_the_next_step(site, scope, children):
    """Between two steps Slurm removes the job's directory, and what was set on it: it is made anew."""
    lease = site.granted()
    child = children.sleeper()
    scope.step(child.pid)
    child.kill()
    child.wait()
    until(lambda: "populated 0" in (scope.directory() / "cgroup.events").read_text())
    scope.end_step()
    before = where(site, lease)
    site.house.reconciler.run_once()
    assert scope.directory().stat().st_ino == where(site, lease)[1] != before[1]
    assert site.house.ledger.lease(lease.id).state is LeaseState.ACTIVE
    assert site.epilog().word is Word.RELEASED
    assert not scope.directory().exists()


def test_nobody_is_signalled_while_slurm_runs_the_job(site, scope, children, stepds):
    """An administrator's release waits for Slurm: until its daemon ends nothing is killed or free."""
    lease = site.granted()
    job, daemon = children.sleeper(), stepds.daemon()
    scope.step(job.pid)
    scope.step(daemon.pid, step="step_extern")
    site.house.agent.release(admin(), lease.id, 0)
    site.house.releaser._timeout = 0.2
    until(lambda: site.house.ledger.lease(lease.id).state is LeaseState.FAILED)
    assert (job.poll(), daemon.poll()) == (None, None)
    assert "frozen 0" in (scope.directory() / "cgroup.events").read_text()
    assert [held.lease for held in site.house.ledger.held()] == [lease.id]
    daemon.kill()
    daemon.wait()
    until(lambda: site.epilog().word is not Word.QUARANTINED)
    assert job.wait() != 0
    assert site.house.ledger.held() == ()
    assert site.house.ledger.held() == ()


def test_a_users_slurmstepd_protects_nobody(site, scope, stepds):
    """A program of that name that the user started is ended with the job, as everything that Slurm left."""
    site.granted()
    forged = stepds.daemon(user=1000)
    scope.step(forged.pid)
    assert site.epilog().word is Word.RELEASED
    assert forged.wait() != 0


def test_a_later_runs_processes_are_spared(site, scope, children):
    """Threat 15: in a directory that was made anew nobody is signalled, however late the release comes."""
    lease = site.granted()
    scope.directory().rmdir()
    stranger = children.sleeper()
    scope.step(stranger.pid)
    site.house.releaser._timeout = 0.2
    assert site.epilog().word is Word.QUARANTINED
    assert stranger.poll() is None
    assert [held.lease for held in site.house.ledger.held()] == [lease.id]
    stranger.kill()
    stranger.wait()
    assert site.epilog().word is Word.RELEASED


def test_a_requeued_job_keeps_its_directory(site, scope, children, stepds):
    """What an earlier run left in quarantine is never cleaned in the directory of the run after it."""
    old, stuck, runs = site.granted(), stepds.daemon(), children.sleeper()
    scope.step(stuck.pid)
    site.house.releaser._timeout = 0.2
    new = site.granted(wait=4, SLURM_JOB_RESTART_COUNT=1)
    assert site.house.ledger.lease(old.id).state is LeaseState.FAILED
    scope.step(runs.pid)
    stuck.kill()
    stuck.wait()
    site.house.releaser.retry(old.id).result()
    assert runs.poll() is None
    runs.kill()
    runs.wait()
    site.house.releaser.retry(old.id).result()
    assert {held.lease for held in site.house.ledger.held()} == {new.id}
    assert where(site, new)[1] == scope.directory().stat().st_ino


def test_a_users_look_alike_is_no_jobs(site, scope):
    """Threat 14: a directory that a user made under the job's name is not taken, and the node says so."""
    scope.directory().mkdir()
    os.chown(scope.directory(), 1000, 1000)
    verdict = site.prolog()
    assert verdict.word is Word.FAULT
    assert "made by uid 1000" in verdict.why


def test_a_users_scope_is_not_slurms(site, scope):
    """Threat 14: a scope in a slice that a user owns is not where jobs run."""
    os.chown(scope.directory().parent.parent, 1000, 1000)
    assert site.granted().cgroup.startswith(site.house.tree.instance)


def test_a_reboot_makes_every_directory_another(site, scope, children):
    """Threat 15: after a reboot a job's directory is none of the lease's, whatever its number."""
    site.granted()
    later = children.sleeper()
    scope.step(later.pid)
    site.house.clock.reboot()
    site.house.reconciler.run_once()
    until(lambda: not site.house.ledger.live())
    assert later.poll() is None
    assert site.house.ledger.held() == ()


def test_nobody_attaches_into_a_jobs_cgroup(site, scope, children):
    """A process in the job's directory itself would stop Slurm from dividing it: who is in the job is in."""
    lease = site.granted(uid=1000)
    outside = children.peer(1000)
    with pytest.raises(NotAllowed, match="srun"):
        site.house.agent.attach(outside, lease.id)
    inside = children.peer(1000)
    scope.step(inside.pid)
    site.house.agent.attach(inside, lease.id)
    assert site.house.tree.cgroup_of(inside.pid) == f"{scope.path}/job_42/step_0"


# -- tasks ----------------------------------------------------------------------------------------


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


def test_limits_are_there_before_a_steps_code(site, scope, children):
    """A directory that Slurm made since the last look is limited before the task's program starts."""
    lease = site.granted(uid=1000)
    scope.directory().rmdir()
    peer = children.peer(1000)
    scope.step(peer.pid)
    task(site, peer, SLURM_JOB_ID=42)
    assert where(site, lease)[1] == scope.directory().stat().st_ino


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


# -- limits ---------------------------------------------------------------------------------------


@pytest.fixture
def limited(site, scope):
    """A job's cgroup, a controller that remembers, and the effect between them."""
    dmem = Dmem(("vram0",))
    dmem.lift = lambda ref, region: dmem.held[ref.path].update({region: None})
    effect = JobDmemEffect(site.house.tree, dmem, site.house.clock, Heirs(site.house.ledger))
    lease = site.granted()
    arguments = {
        "lease": lease.id,
        "parent": scope.path,
        "name": "job_42",
        "also": [],
        "boot_id": site.house.clock.boot_id,
        "regions": {"vram0": 4 * GIB},
    }
    return effect, dmem, arguments, f"{scope.path}/job_42"


@pytest.mark.parametrize(("there", "left"), [(None, 4), (0, 4), (8, 4), (2, 2)])
def test_of_two_limits_the_smaller_wins(limited, there, left):
    """A limit that Slurm set lower stays, and the evidence says whose it is; the closure's 0 does not."""
    effect, dmem, arguments, path = limited
    dmem.held[path] = {"vram0": there and there * GIB}
    evidence = effect.apply(arguments)
    read = effect.verify(arguments, evidence)
    assert dmem.held[path] == {"vram0": left * GIB}
    assert read["owner"] == ({"vram0": "slurm"} if left == 2 else {})


def test_a_limit_that_does_not_hold_is_told(limited):
    """Raised by somebody, it is not verified."""
    effect, dmem, arguments, path = limited
    evidence = effect.apply(arguments)
    dmem.held[path] = {"vram0": 5 * GIB}
    with pytest.raises(OutsideFault):
        effect.verify(arguments, evidence)


def test_a_limit_of_ours_goes_with_the_lease(limited):
    """Else the next lease there would take it for Slurm's; Slurm's own is left."""
    effect, dmem, arguments, path = limited
    evidence = effect.apply(arguments)
    dmem.current = lambda ref: {"vram0": 1}
    assert "still charged" in effect.undo(arguments, evidence).why
    dmem.current = lambda ref: {}
    effect.undo(arguments, evidence)
    assert dmem.held[path] == {"vram0": None}
    dmem.held[path] = {"vram0": GIB}
    effect.undo(arguments, evidence)
    assert dmem.held[path] == {"vram0": GIB}
