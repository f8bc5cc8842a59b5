"""Leases in jobs' own cgroups, which Slurm makes, fills and ends as it likes, and tasks that enter ours."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from service_builders import GIB, House, admin, until
from service_world import DeathError
from slurm_world import Scope, Site
from structlog.testing import capture_logs
from test_kernel_tier import Dmem, Outside

from nodeagent.adapters.inotify import Made
from nodeagent.domain.errors import NotAllowed, OutsideFault
from nodeagent.domain.lease import Lease, LeaseState
from nodeagent.domain.slurm import Word
from nodeagent.service.cgroup_effects import cgroup_in
from nodeagent.service.closure import Closing
from nodeagent.service.job_effects import Heirs, JobCgroupEffect, JobDmemEffect
from nodeagent.service.job_events import JobEvents
from nodeagent.service.means import Setting
from nodeagent.service.proof import VramMeans
from nodeagent.service.reconcile import Periods

pytestmark = [pytest.mark.cgroup2, pytest.mark.root]


@pytest.fixture
def site(home: House, scope: Scope) -> Site:
    return Site(home)


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


def test_a_prolog_cut_short_is_finished_in_the_same_directory(build, tree, scope, effect):
    """An agent that died after it made the directory finds it again, and knows that it is its to remove."""
    effect.script["apply"] = [DeathError()]
    first = Site(build(tree=tree, effect=effect, timeout=20))
    with pytest.raises(DeathError):
        first.prolog()
    first.house.die()
    made = scope.directory().stat().st_ino
    site = Site(build(tree=tree, effect=effect, timeout=20))
    lease = site.granted(wait=4)
    assert where(site, lease) == (f"{scope.path}/job_42", made)
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
    told = {"SLURM_JOB_SLUID": "s5K1KKYAYG5D00", "SLURM_JOB_EXCLUSIVE": "NO"}
    lease = site.granted(**told)
    assert lease.cgroup == f"{scope.path}/s5K1KKYAYG5D00"
    scope.directory("job_42").mkdir()
    site.house.reconciler.run_once()
    assert where(site, lease)[0] == f"{scope.path}/s5K1KKYAYG5D00"


def test_the_directory_in_use_counts(site, scope, children):
    """With CgroupJobIdPaths=yes Slurm uses the other name: the limits move there, and ours goes."""
    lease = site.granted(SLURM_JOB_SLUID="s5K1KKYAYG5D00", SLURM_JOB_EXCLUSIVE="NO")
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


def test_a_directory_that_goes_within_a_look_is_no_trouble(site, scope, monkeypatch):
    """Slurm may end a step between what is set and what is read back: the next look makes up for it."""
    lease = site.granted()
    apply = JobCgroupEffect.apply

    def vanishes(self, arguments):
        made = apply(self, arguments)
        scope.directory().rmdir()
        return made

    scope.directory().rmdir()
    with monkeypatch.context() as short, capture_logs() as logs:
        short.setattr(JobCgroupEffect, "apply", vanishes)
        site.house.reconciler.run_once()
    assert [one["log_level"] for one in logs if one["log_level"] != "debug"] == []
    assert any(one["event"].startswith("a job's cgroup went") for one in logs)
    site.house.jobs.looks["job cgroups"]()
    assert scope.directory().stat().st_ino == where(site, lease)[1]


def test_a_directory_that_slurm_makes_anew_is_heard_of(build, tree, scope, children):
    """Its limits do not wait for the next look, which is an hour away here."""
    site = Site(build(tree=tree, timeout=20, periods=Periods(look=3600, pause=0)))
    site.house.reconciler.start()
    try:
        lease = site.granted()
        site.house.jobs.looks["job cgroups"]()  # listens in the scope
        before = where(site, lease)
        scope.directory().rmdir()
        scope.step(children.sleeper().pid)
        until(lambda: where(site, lease)[1] == scope.directory().stat().st_ino)
        assert where(site, lease) != before
    finally:
        site.house.reconciler.stop()


@pytest.mark.parametrize("lost", [False, True])
def test_only_the_jobs_that_were_heard_of_are_looked_at(site, scope, lost):
    """A directory of another name costs nothing; after lost events every job is looked at."""

    class Source:
        def read(self) -> Made:
            return Made(frozenset({"job_43"}), lost)

    lease = site.granted()
    events = JobEvents(Source(), scope.tree, site.house.agent.slurm._parts.tasks._cgroups)
    before = where(site, lease)
    scope.directory().rmdir()
    assert events.hear()
    events.act()
    assert (where(site, lease) != before) is lost
    events.act()


def test_a_job_that_begins_during_a_look_is_not_closed(site, scope):
    """The closure met its cgroup and knew of no lease there: what the grant wrote stays."""
    house, outside = site.house, Outside()

    def children(path: str) -> list[str]:
        site.granted()
        return [scope.path.split("/")[1]]

    outside.children = children
    closing = Closing(outside, scope.tree, house.ledger, house.survey)
    closing.look([house.survey.found().pools[0].region])
    assert outside.caps == {}
    closing.again()
    assert outside.caps != {}


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


def test_a_jobs_vram_is_proved_back_by_the_cards(home):
    """The job's cgroup, which counted it, is gone by then; a lease's own is there until the end."""
    inventory = home.survey.found()
    device = inventory.devices[0]
    dmem = Dmem(tuple(pool.region for pool in inventory.pools))
    placed = (SimpleNamespace(pool=device.pool, device=device.key),)
    means = VramMeans(dmem, lambda pool, size: 0, home.clock, 0)
    own = {"lease": 1, "parent": None}
    assert means.plan(1, Setting(0, None, own, False, placed, inventory)) == []
    (planned,) = means.plan(1, Setting(0, None, {**own, "name": "job_42"}, False, placed, inventory))
    assert list(planned.arguments["pools"]) == [device.pool]
