"""Jobs' leases: asked for by the prolog, ended by the epilog, whatever is late, lost, repeated or forged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from service_builders import House, admin, order_of, until, user
from service_world import ScriptedEffect
from slurm_world import Site, body

from nodeagent.config import Slurm
from nodeagent.domain.errors import InvalidField, LedgerUnavailable, NotAllowed
from nodeagent.domain.lease import AnchorKind, HolderKind, LeaseState
from nodeagent.domain.slurm import Word
from nodeagent.service import job_leases
from nodeagent.service.orders import Granted
from nodeagent.service.quotas import QuotaLimits

SHARDS = {"SLURM_JOB_EXTRA": "gpulease:shards=2"}


@pytest.fixture
def site(house: House) -> Site:
    """Two GPUs of four shards each; nobody's words are believed."""
    return Site(house)


@pytest.fixture
def trusting(build, tmp_path: Path) -> Site:
    """The same where job_submit.lua writes what a job asks for."""
    config = {"slurm": Slurm(request_from="extra", spool=tmp_path / "state" / "spool")}
    return Site(build(config=config))


def test_a_job_gets_its_lease_for_its_user(site):
    """One shard of the job's own GPU, held for the job and its user until somebody says that it ended."""
    lease = site.granted(uid=1000, gpus="1")
    (held,) = lease.slices
    device = site.house.survey.inventory().device(held.placed.device)
    assert (lease.holder.kind, lease.holder.id, lease.holder.uid) == (HolderKind.SLURM, "42", 1000)
    assert lease.anchor.kind is AnchorKind.EXTERNAL
    assert lease.anchor.deadline_ns is None
    assert device.render_node == "renderD129"
    assert held.placed.vram_bytes <= device.grantable_bytes // 4
    assert held.placed.cu_requested == device.cus // 4


def test_a_repeated_prolog_gets_the_same_lease(site):
    """The script may ask as often as it likes for one run."""
    first = site.granted()
    assert str(site.prolog()).splitlines() == ["granted", f"lease {first.id}"]
    assert len(site.leases()) == 1


@pytest.mark.parametrize("gpus", ["", "7"])
def test_a_job_without_a_gpu_of_ours_has_none(site, gpus):
    """No GPU, or one of another maker, is none of ours; one that gres.conf lacks is the node's fault."""
    assert site.prolog(gpus=gpus).word is (Word.FAULT if gpus else Word.NONE)
    lines = (site.house.root / "etc/slurm/gres.conf").read_text()
    (site.house.root / "etc/slurm/gres.conf").write_text(f"{lines}Name=gpu File=/dev/nvidia0\n")
    assert site.prolog(gpus="2").word is Word.NONE
    assert site.leases() == ()


def test_a_gpu_that_this_node_lacks_is_the_nodes_fault(site):
    """gres.conf and the node differ: the verdict names the file, for sinfo to show."""
    (site.house.root / "etc/slurm/gres.conf").write_text("Name=gpu File=/dev/dri/renderD140\n")
    assert site.prolog().why == "/dev/dri/renderD140: is in gres.conf, and is no device of this node"
    (site.house.root / "etc/slurm/gres.conf").unlink()
    assert site.prolog().word is Word.FAULT


def test_where_slurm_is_turned_off_no_job_has_a_lease(build, tmp_path):
    """Off means that scripts are answered, and nothing else."""
    site = Site(build(config={"slurm": Slurm(enabled=False)}))
    assert (site.prolog().word, site.epilog().word) == (Word.NONE, Word.NONE)
    assert site.house.agent.slurm.task(user(), b"SLURM_JOB_ID=42\0") == ("none",)
    assert site.leases() == ()


def test_a_gpu_without_shards_is_granted_whole(site):
    """gres/gpu alone is the whole device, for nobody beside."""
    site.configure(shards=0)
    (held,) = site.granted().slices
    assert held.placed.whole
    assert held.placed.exclusive
    assert site.prolog(job=43).word is Word.WAIT


def test_several_gpus_are_one_lease(site):
    """A slice on each GPU of the job, in Slurm's order."""
    lease = site.granted(gpus="1,0")
    nodes = [site.house.survey.inventory().device(one.placed.device).render_node for one in lease.slices]
    assert nodes == ["renderD129", "renderD128"]


def test_words_are_believed_only_where_the_site_says_so(site, trusting):
    """Without job_submit.lua a user writes the word itself: it gets the default, and nothing by asking."""
    asked = SHARDS | {"SLURM_JOB_COMMENT": "gpulease:shards=4"}
    (mean,) = site.granted(**asked).slices
    (given,) = trusting.granted(job=43, **asked).slices
    assert given.placed.cu_requested == 2 * mean.placed.cu_requested


def test_a_job_that_asks_for_too_much_is_refused(trusting):
    """It is the job's fault, said without a word of the job's."""
    verdict = trusting.prolog(SLURM_JOB_EXTRA="gpulease:shards=5 $(id)\n")
    assert str(verdict) == "refused\njob 42 asks for 5 shards of a GPU that has 4\n"
    refused = trusting.house.ledger.events(limit=1000)[-1]
    assert (refused.kind, refused.uid, refused.data) == ("refused", 1000, {"job": 42})


@pytest.mark.parametrize("text", ["gpulease:shards=4;gpulease:shards=4", "x" * 300, "\x1b[2J`id`\n\n'\""])
def test_a_forged_word_gets_one_shard(trusting, text):
    """Threat 2: what is not exactly the plugin's word asks for nothing, and is never told."""
    (held,) = trusting.granted(SLURM_JOB_EXTRA=text).slices
    assert held.placed.cu_requested == trusting.house.survey.inventory().devices[0].cus // 4
    assert all(text not in str(event) for event in trusting.house.ledger.events(limit=1000))


def test_a_job_without_room_waits_its_turn(site):
    """The node owes the shards: the job keeps its place while its prolog asks again, and gets them."""
    first = [site.granted(job=job) for job in range(1, 5)]
    verdict = site.prolog(job=5)
    assert verdict.word is Word.WAIT
    assert verdict.why.endswith(": held by lease " + ", ".join(str(lease.id) for lease in first))
    (waiting,) = site.leases(5)
    assert waiting.state is LeaseState.QUEUED
    site.epilog(job=2)
    site.house.reconciler.run_once()
    assert site.granted(job=5).id == waiting.id


def test_an_epilog_ends_what_waits(site):
    """A job that is cancelled while its prolog waits leaves no place in the queue behind."""
    for job in range(1, 5):
        site.granted(job=job)
    site.prolog(job=5)
    assert site.epilog(job=5).word is Word.RELEASED
    assert [lease.state for lease in site.leases(5)] == [LeaseState.CANCELLED]


def test_a_drained_device_is_waited_for(site):
    """What an administrator holds back is capacity that the node owes, not the job's fault."""
    for device in site.house.survey.inventory().devices:
        site.house.agent.drain(admin(), device.key)
    assert site.prolog().word is Word.WAIT


def test_an_epilog_releases_once(site):
    """The end of a job frees its slices; again, or for a job that never had any, is success."""
    lease = site.granted()
    assert str(site.epilog()).splitlines() == ["released", f"lease {lease.id}"]
    assert site.house.ledger.held() == ()
    assert site.epilog().word is Word.NONE
    assert site.epilog(job=77).word is Word.NONE


def test_a_late_epilog_spares_the_next_run(site):
    """An epilog that ran before the lease began is of an earlier run: the requeued job keeps what it has."""
    early = site.now()
    site.house.clock.turn(120)
    lease = site.granted(SLURM_JOB_RESTART_COUNT=1)
    assert site.epilog(at=early, SLURM_JOB_RESTART_COUNT=1).word is Word.NONE
    assert site.house.ledger.lease(lease.id).state is LeaseState.ACTIVE
    assert site.epilog().word is Word.RELEASED


def test_an_epilog_that_overtook_its_prolog_ends_the_run(site):
    """Slurm's own start time says which run it is, where the times of the scripts do not."""
    early = site.now()
    site.house.clock.turn(1)
    site.granted(SLURM_JOB_START_TIME=1_700_000_000)
    told = {"SLURM_JOB_START_TIME": 1_700_000_000, "SLURM_JOB_RESTART_COUNT": 1}
    assert site.epilog(at=early, **told).word is Word.RELEASED


def test_a_new_run_ends_the_old_one_first(site):
    """A prolog whose job still has an earlier run's lease, its epilog lost, ends that and has its own."""
    old = site.granted()
    new = site.granted(wait=10, SLURM_JOB_RESTART_COUNT=1)
    assert site.house.ledger.lease(old.id).state is LeaseState.RELEASED
    assert new.id > old.id


def test_another_users_job_of_the_same_id_has_its_own_lease(site):
    """Job ids begin anew after `slurmctld -c`, and an epilog may be lost: nobody has another user's lease."""
    old = site.granted(uid=1000)
    new = site.granted(uid=1001, wait=10)
    assert site.house.ledger.lease(old.id).state is LeaseState.RELEASED
    assert (new.id > old.id, new.holder.uid) == (True, 1001)


def test_a_job_that_was_requeued_without_end_still_loses_its_lease(site, monkeypatch):
    """Its newest lease is found behind any number of older ones, and ends with its epilog."""
    monkeypatch.setattr(job_leases, "MOST", 2)
    for restarts in range(5):
        lease = site.granted(wait=10, SLURM_JOB_RESTART_COUNT=restarts)
        assert site.epilog().word is Word.RELEASED
        assert site.house.ledger.lease(lease.id).state is LeaseState.RELEASED


def test_a_run_that_lost_its_lease_gets_another(site):
    """A job id that comes again, as after `slurmctld -c`, is not told of the lease that ended."""
    old = site.granted()
    site.epilog()
    new = site.granted()
    assert new.id > old.id
    assert new.request_id == f"{old.request_id}.{old.id}"


def test_a_user_cannot_take_a_jobs_place(site):
    """Threat 10: a job's request id and holder, taken by its user before, are in nobody's way."""
    taken = site.house.agent.grant(user(1000), order_of(request_id="slurm-42-0-0", cus=4))
    assert isinstance(taken, Granted)
    lease = site.granted(uid=1000)
    assert lease.holder.kind is HolderKind.SLURM
    with pytest.raises(NotAllowed):
        site.house.agent.grant(user(1000), order_of(holder=(HolderKind.SLURM, "42"), cus=4))


def test_jobs_use_up_no_users_limits(build):
    """Slurm counts what a user may have of jobs; the user's own leases are not fewer for them."""
    site = Site(build(limits=QuotaLimits(live_leases=1)))
    for job in range(1, 4):
        site.granted(job=job, uid=1000)
    assert isinstance(site.house.agent.grant(user(1000), order_of(cus=4)), Granted)


def test_only_administrators_speak_for_jobs(site):
    """A user gets no lease for a job, and ends none."""
    for call in (site.house.agent.slurm.prolog, site.house.agent.slurm.epilog):
        with pytest.raises(NotAllowed):
            call(user(), body(at=1.0))


def test_an_epilog_says_when_it_ran(site):
    """Without its time nobody can tell which run it is of: that is no call."""
    with pytest.raises(InvalidField, match="GPULEASE_AT"):
        site.house.agent.slurm.epilog(admin(), body())


def test_a_slice_that_is_not_clean_ends_the_job_all_the_same(build):
    """Slurm has nothing more to do: the slice is kept back, and frees with the proof."""
    effect = ScriptedEffect()
    site = Site(build(effect=effect))
    site.granted()
    effect.script["undo"] = ["in the way"] * 50
    assert site.epilog().word is Word.QUARANTINED
    effect.script["undo"] = ["in the way"] * 50
    assert site.epilog().word is Word.QUARANTINED
    effect.script["undo"] = []
    assert site.epilog().word is Word.RELEASED


def test_an_epilog_does_not_wait_for_ever(build):
    """A proof that takes longer is answered as such, and asked for again."""
    effect = ScriptedEffect()
    site = Site(build(effect=effect, timeout=20))
    site.granted()
    effect.script["undo"] = ["still going"] * 1000
    assert site.epilog(wait=0).word is Word.RELEASING
    effect.script["undo"] = []
    assert site.epilog().word in (Word.RELEASED, Word.NONE)  # none is left where the proof came first


def test_a_fault_of_the_node_is_told_and_leaves_nothing(build):
    """Limits that cannot be set are tried twice; then the node is at fault, and nothing is held."""
    effect = ScriptedEffect()
    site = Site(build(effect=effect))
    effect.script["apply"] = [OSError(28, "no space"), OSError(28, "no space")]
    assert site.prolog().word is Word.FAULT
    until(lambda: not site.house.ledger.live())
    effect.script["apply"] = [OSError(28, "no space")]
    assert site.prolog().word is Word.GRANTED


def test_the_prolog_is_told_where_the_hook_is(build, hook_files):
    """What root needs to load the hook into the job: the directory of the lease's limits, and the library."""
    site = Site(build(hook=hook_files))
    verdict = site.prolog()
    (lease,) = site.leases()
    limits = hook_files.limits_path(lease.id)
    assert verdict.hook == (str(limits.parent), str(hook_files.library()))
    assert limits.exists()


def test_a_reboot_ends_jobs(site):
    """No epilog comes for what ran before a reboot."""
    site.granted()
    site.house.clock.reboot()
    site.house.reconciler.run_once()
    assert all(lease.state is not LeaseState.ACTIVE for lease in site.leases())


def test_a_jobs_lease_lives_without_processes(site):
    """Between two steps nobody runs: only an epilog or a reboot ends a job."""
    lease = site.granted()
    site.house.clock.turn(100_000)
    site.house.reconciler.run_once()
    assert site.house.ledger.lease(lease.id).state is LeaseState.ACTIVE


# -- the spool ------------------------------------------------------------------------------------


@pytest.fixture
def booted(clock) -> Iterator[None]:
    """Boot ids as the kernel writes them."""
    clock.boot_id = "00000000-0000-0000-0000-00000000000a"
    return


def test_an_epilog_that_nobody_answered_is_made_up_for(booted, site):
    """Its record ends the job at the next look, and goes."""
    site.granted()
    record = site.spool("epilog")
    site.house.reconciler.run_once()
    assert site.leases()[0].state is not LeaseState.ACTIVE
    assert not record.exists()


def test_a_prolog_that_gave_up_leaves_no_lease(booted, site):
    """What was granted after its script had gone ends; a run of another key stays."""
    late, other = site.granted(), site.granted(job=43)
    site.spool("prolog")
    site.house.reconciler.run_once()
    assert site.house.ledger.lease(late.id).state is not LeaseState.ACTIVE
    assert site.house.ledger.lease(other.id).state is LeaseState.ACTIVE


def test_a_call_that_comes_after_its_script_gave_up_gets_nothing(booted, site):
    """The call may lie in the socket longer than its script waits: it is known by the script's time."""
    at = site.now()
    site.spool("prolog", at=at)
    site.house.reconciler.run_once()
    assert site.prolog(at=at).word is Word.FAULT
    assert site.prolog(at=at + 8).word is Word.GRANTED


def test_records_of_another_boot_are_only_removed(booted, site):
    """What ran before a reboot has ended with it."""
    lease = site.granted()
    record = site.spool("epilog", boot="00000000-0000-0000-0000-00000000000b")
    site.house.reconciler.run_once()
    assert site.house.ledger.lease(lease.id).state is LeaseState.ACTIVE
    assert not record.exists()


def test_a_late_record_spares_the_next_run(booted, site):
    """A record is bound by the same rule as the epilog itself."""
    site.spool("epilog", at=site.now())
    site.house.clock.turn(60)
    lease = site.granted(SLURM_JOB_RESTART_COUNT=1)
    site.house.reconciler.run_once()
    assert site.house.ledger.lease(lease.id).state is LeaseState.ACTIVE


def test_a_record_that_cannot_be_read_stops_nothing(booted, site):
    """Rubbish is told and removed; what is still being written is left alone."""
    rubbish = site.spool("epilog", raw=b"\0\xff")
    fresh = rubbish.with_name(f".{rubbish.name}")
    fresh.write_bytes(b"half")
    site.house.reconciler.run_once()
    assert (rubbish.exists(), fresh.exists()) == (False, True)


def test_nothing_is_granted_before_the_spool_was_read(booted, build):
    """An agent that starts reads first, for all who ask; what others may write it never believes."""
    site = Site(build())
    site.house.spool.mkdir()
    site.house.spool.chmod(0o777)
    house = build()
    assert "others can write here" in house.agent.unready()
    with pytest.raises(LedgerUnavailable):
        house.agent.slurm.prolog(admin(), body())
    site.house.spool.chmod(0o700)
    house.reconciler.run_once()
    assert house.agent.unready() is None
