"""The site's quotas as they hold: for callers, jobs and those that wait, in whatever order things happen."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from service_builders import House, admin, order_of, user
from service_world import ScriptedEffect, TurnedClock
from slurm_world import Site

from nodeagent.config import Mode, Quota
from nodeagent.domain.lease import HolderKind, Lease, LeaseState
from nodeagent.domain.refusals import Code, Refusal
from nodeagent.domain.slurm import Word
from nodeagent.service.orders import Caller, Granted, Queued
from nodeagent.service.quota_rules import QuotaRules

GIB = 1 << 30
STUDENTS = 64_500
SUBUIDS = {100_001: 1000, 100_002: 1000}


@pytest.fixture
def under(build):
    """Build an agent whose site has these quotas."""

    def make(*quotas: dict[str, Any], **changes: Any) -> House:
        config = {"quota": [Quota(**one) for one in quotas], **changes.pop("config", {})}
        return build(config=config, owner_of=lambda uid: SUBUIDS.get(uid, uid), **changes)

    return make


def ask(house: House, caller: Caller | None = None, **order: Any) -> Granted | Queued | Refusal:
    return house.agent.grant(caller or user(), order_of(**order))


def refusal(outcome: object) -> Refusal:
    assert isinstance(outcome, Refusal), outcome
    assert outcome.code is Code.QUOTA_NOT_FIT
    return outcome


def student(uid: int, *, first: bool = False) -> Caller:
    """A member of the group that is listed nowhere; *first*: as the group of its processes."""
    caller = user(uid)
    return replace(caller, gid=STUDENTS) if first else replace(caller, groups=frozenset({STUDENTS}))


@pytest.mark.parametrize(
    ("limit", "fits", "over"),
    [
        ({"vram": "8GiB"}, {"vram_bytes": 8 * GIB, "cus": 4}, {"vram_bytes": 1, "cus": 4}),
        ({"vram": "12GiB"}, {"vram_percent": 50.0}, {"vram_percent": 50.0}),
        ({"cus": 64}, {}, {"cus": 4}),
        ({"cus": 32}, {"cu_percent": 50.0}, {"cu_percent": 50.0}),
        ({"queue_slots": 4}, {"cus": 4, "queue_slots": 4}, {"cus": 4, "queue_slots": 1}),
        ({"leases": 1}, {"cus": 4}, {"cus": 4}),
    ],
)
def test_a_quota_holds_for_what_was_placed(under, limit: Any, fits: Any, over: Any) -> None:
    """Bytes, CUs, slots and leases, of percentages and whole devices too; what is in the way is named."""
    house = under({"user": 1000, **limit})
    lease = house.grant(user(), **fits)
    refused = refusal(ask(house, **over))
    assert refused.why.startswith("quota of user 1000, ")
    assert refused.blockers == (lease.id,)
    assert house.grant(user(1001), **over)
    house.release(lease, user())
    assert house.grant(user(), **over)


def test_without_quotas_nothing_is_asked_of_the_ledger(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site without quotas pays nothing for them, nor a caller that none covers."""
    monkeypatch.setattr(type(house.ledger), "holdings", None)
    assert house.grant(user(), cus=4)
    assert QuotaRules().allotments(house.ledger, user()) == ()


def test_a_race_of_two_grants_cannot_pass(under) -> None:
    """Sixteen threads ask for one of four leases each: four have one."""
    house = under({"user": "*", "leases": 4}, {"group": STUDENTS, "cus": 32})
    with ThreadPoolExecutor(16) as pool:
        outcomes = list(pool.map(lambda _: ask(house, student(1000), cus=4), range(16)))
    assert sum(isinstance(one, Granted) for one in outcomes) == 4
    assert all(refusal(one) for one in outcomes if not isinstance(one, Granted))
    assert len(house.ledger.held()) == 4


def test_what_can_never_fit_does_not_wait(under) -> None:
    """A request above the whole quota is refused at once, also where the devices are taken."""
    house = under({"user": "*", "cus": 32})
    assert refusal(ask(house, wait=60)).blockers == ()
    house.grant(admin(), count=2)
    assert "CUs: 64 asked, 32 allowed" in refusal(ask(house, wait=60)).why


def test_who_is_over_its_quota_waits_for_its_own_leases(under) -> None:
    """With --wait it is queued, is passed by others meanwhile, and granted when its own lease ends."""
    house = under({"user": "*", "cus": 64})
    first = house.grant(user(), cus=64)
    waiting = house.grant(user(), cus=32, wait=600)
    house.look()
    assert house.state(waiting.id) is LeaseState.QUEUED
    assert isinstance(ask(house, user(1001), cus=64), Granted)
    house.release(first, user())
    house.look()
    assert house.state(waiting.id) is LeaseState.ACTIVE


def test_nothing_is_kept_for_who_is_over_its_quota(under) -> None:
    """Who waits for its own lease, which lies elsewhere, keeps the device that it could have from nobody."""
    house = under({"user": "*", "leases": 1})
    first = house.grant(user(), cus=4, ttl=7200)
    taken = house.grant(user(1001), count=1, ttl=600)
    house.grant(user(), cus=64, wait=600)
    house.look()
    house.release(taken, user(1001))
    assert isinstance(ask(house, user(1002), cus=64), Granted)
    assert house.state(first.id) is LeaseState.ACTIVE


def test_the_queue_leads_nobody_past_its_quota(under) -> None:
    """Two that wait and would both fit become one lease, and then the other."""
    house = under({"user": "*", "leases": 1})
    taken = house.grant(admin(), count=2)
    waiting = [house.grant(user(), cus=4, wait=600) for _ in range(2)]
    house.release(taken)
    house.look()
    states = [house.state(one.id) for one in waiting]
    assert states == [LeaseState.ACTIVE, LeaseState.QUEUED]
    house.release(waiting[0], user())
    house.look()
    assert house.state(waiting[1].id) is LeaseState.ACTIVE


def test_what_is_not_clean_counts(under, effect: ScriptedEffect) -> None:
    """threat 17: what a lease left behind counts until it is proved clean, be the lease ended."""
    house = under({"user": "*", "cus": 4}, effect=effect)
    lease = house.grant(user(), cus=4)
    effect.script = {"undo": ["memory is still charged"] * 1000}
    house.release(lease, user())
    assert refusal(ask(house, cus=4)).blockers == (lease.id,)
    effect.script.clear()
    house.agent.clear_lease(admin(), lease.id)
    assert house.grant(user(), cus=4)


def test_quotas_outlive_a_restart(under) -> None:
    """What counts is what the ledger holds, also for an agent that granted none of it."""
    house = under({"user": "*", "leases": 1})
    house.grant(user(), cus=4)
    house.die()
    assert refusal(ask(under({"user": "*", "leases": 1}), cus=4))


def test_subordinate_uids_count_for_their_owner(under) -> None:
    """threat 20: a mapped uid is no further user, and shares what is its owner's."""
    house = under({"user": "*", "leases": 2})
    house.grant(user(100_001), cus=4)
    house.grant(user(100_002), cus=4)
    for uid in (1000, 100_001, 100_002):
        assert refusal(ask(house, user(uid), cus=4))
    assert house.grant(user(1001), cus=4)


def test_nobody_leaves_a_groups_quota_by_leaving_the_group(under) -> None:
    """Who was seen in the group counts with it, also when it asks as one of another."""
    house = under({"group": STUDENTS, "leases": 2})
    house.grant(user(1000), cus=4)  # not seen in the group yet
    house.grant(student(1000), cus=4)
    assert refusal(ask(house, user(1000), cus=4))
    assert refusal(ask(house, student(1001, first=True), cus=4))
    assert house.grant(user(1002), cus=4)


def test_administrators_are_held_by_no_quota(under) -> None:
    """Root takes what it asks for, and uses up nobody's total; another administrator's leases count."""
    house = under({"kind": "client", "leases": 1})
    for _ in range(3):
        house.grant(admin(), cus=4)
    operator = replace(user(1005), administrator=True)
    for _ in range(2):
        house.grant(operator, cus=4)
    assert refusal(ask(house, cus=4))


def test_a_kind_of_holder_has_a_quota_of_its_own(under) -> None:
    """Processes together get one lease, and clients as many as there are."""
    house = under({"kind": "process", "leases": 1})
    caller = user()
    holder = (HolderKind.PROCESS, str(caller.pid))
    house.grant(caller, cus=4, holder=holder)
    assert refusal(ask(house, caller, cus=4, holder=holder))
    assert house.grant(caller, cus=4)


def test_what_is_observed_is_told_of_its_quota(under) -> None:
    """In observe mode nothing is refused; the event says what would be, and nothing counts."""
    house = under({"user": "*", "cus": 4}, config={"mode": Mode(client="observe")})
    lease = house.grant(user(), cus=8)
    told = [one for one in house.ledger.events(lease=lease.id) if one.kind == "observed"]
    assert [one.data["would"] for one in told if one.data] == [Code.QUOTA_NOT_FIT]
    assert house.ledger.holdings() == ()


# -- jobs -------------------------------------------------------------------------------------------

PHYSICS = {"SLURM_JOB_ACCOUNT": "physics"}


@pytest.fixture
def site(under):
    """A site of four shards for each of two GPUs, with these quotas."""
    return lambda *quotas, **changes: Site(under(*quotas, **changes))


def test_jobs_count_for_their_user_and_account(site) -> None:
    """A job of the account is refused when the account has its share, whoever's; others are not."""
    physics = site({"account": "Physics", "leases": 2})
    physics.granted(job=1, uid=1000, **PHYSICS)
    physics.granted(job=2, uid=1001, SLURM_JOB_ACCOUNT="PHYSICS")
    verdict = physics.prolog(job=3, uid=1002, **PHYSICS)
    assert verdict.word is Word.REFUSED
    assert verdict.why == "job 3 is over the quota of account Physics, leases: 1 asked, 2 held, 2 allowed"
    assert physics.prolog(job=4, uid=1002, SLURM_JOB_ACCOUNT="chemistry").word is Word.GRANTED
    assert physics.prolog(job=5, uid=1002).word is Word.GRANTED


def test_jobs_and_own_leases_count_together_for_a_user(site) -> None:
    """A quota of a user that names no kind is one for all that the user holds."""
    both = site({"user": "*", "leases": 1})
    both.granted(job=1, uid=1000)
    assert both.prolog(job=2, uid=1000).word is Word.REFUSED
    assert both.prolog(job=3, uid=1001).word is Word.GRANTED
    both.epilog(job=1, uid=1000)
    assert both.prolog(job=2, uid=1000).word is Word.GRANTED


def test_a_job_waits_for_one_that_is_ending(site, effect: ScriptedEffect) -> None:
    """Slurm starts the next job while the last one's lease is being released: that is no job's fault."""
    busy = site({"kind": "slurm", "leases": 1}, effect=effect, timeout=30)
    lease = busy.granted(job=1)
    gone = []
    effect.script = {"undo": ["still charged"] * 3}
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(busy.epilog, job=1)
        while busy.house.state(lease.id) is LeaseState.ACTIVE:
            gone.append(1)
        assert busy.prolog(wait=20, job=2, uid=1001).word is Word.GRANTED
        assert ended.result().word is Word.RELEASED


def test_a_job_that_waited_and_is_over_a_quota_is_refused(site) -> None:
    """In its turn a job that is over a quota is ended and refused: the node is never drained for it."""
    full = site({"user": 1000, "leases": 1})
    other = full.granted(job=1, uid=1001, gpus="0,1", SLURM_JOB_EXTRA="")
    (full.house.root / "etc/slurm/gres.conf").write_text(
        "".join(f"Name=gpu File=/dev/dri/renderD{minor}\n" for minor in (128, 129))
    )
    blocked = full.prolog(job=2, uid=1000, gpus="0")
    assert blocked.word is Word.WAIT
    full.configure(4)
    full.granted(job=3, uid=1000, gpus="1")
    full.epilog(job=1, uid=1001, gpus="0,1")
    full.house.look()
    (waited,) = full.leases(2)
    assert (waited.state, waited.reason) == (LeaseState.CANCELLED, "over a quota")
    assert full.prolog(job=2, uid=1000, gpus="0").word is Word.REFUSED
    assert full.house.state(other.id) is LeaseState.RELEASED


@pytest.mark.parametrize("text", ["physics\n", "a b", "$(id)", "phys;ics", "x" * 65, "\u00e9", ""])
def test_what_no_account_is_called_is_none(site, text: str) -> None:
    """Where Slurm checks no accounts they are users' text: it is read strictly, and drains no node."""
    physics = site({"account": "physics", "leases": 1}, {"user": "*", "leases": 1})
    lease: Lease = physics.granted(job=1, SLURM_JOB_ACCOUNT=text)
    assert physics.house.ledger.account(lease.id) is None
    assert physics.prolog(job=2, SLURM_JOB_ACCOUNT=text).word is Word.REFUSED


def test_allotments_tell_a_caller_its_own_quotas(site, clock: TurnedClock) -> None:
    """Its use of those that hold for it: not another user's, nor an account's that none of its jobs is of."""
    physics = site(
        {"user": "*", "leases": 9},
        {"user": 1001, "leases": 9},
        {"account": "physics", "cus": 99},
        {"account": "chemistry", "cus": 99},
        {"group": STUDENTS, "leases": 9},
    )
    physics.granted(job=1, uid=1000, **PHYSICS)
    physics.granted(job=2, uid=1001, **PHYSICS)
    house = physics.house
    rules = house.quotas.rules
    told = {one.quota.name: one.used for one in rules.allotments(house.ledger, student(1000))}
    assert list(told) == ["each user", "account physics", "group 64500"]
    assert (told["each user"].leases, told["account physics"].cus) == (1, 32)
    assert told["group 64500"].leases == 1
    assert house.agent.quotas(student(1000)) == rules.allotments(house.ledger, student(1000))
    assert house.agent.quotas(admin()) == house.agent.quotas(replace(user(0))) == ()
