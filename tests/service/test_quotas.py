"""What one user may take: leases, places in the queue, grants a second. Threat 20."""

from __future__ import annotations

import pytest
from service_builders import House, admin, order_of, picture, user
from service_world import SECOND, ScriptedEffect, TurnedClock

from nodeagent.domain.errors import TooMany
from nodeagent.domain.refusals import Code, Refusal
from nodeagent.service.quotas import QuotaLimits, Quotas

FAST = 1e9
SUBUIDS = {100_001: 1000, 100_002: 1000}


def owner_of(uid: int) -> int:
    return SUBUIDS.get(uid, uid)


@pytest.fixture
def few(build) -> House:
    """Three live leases and two waiting ones a user; two subordinate uids belong to uid 1000."""
    return build(limits=QuotaLimits(3, 2, FAST), owner_of=owner_of)


def is_over(outcome: object) -> bool:
    return isinstance(outcome, Refusal) and outcome.code is Code.QUOTA_NOT_FIT


def test_a_user_has_so_many_leases_and_no_more(few: House) -> None:
    """The fourth is refused with ResourceQuotaNotFit and changes nothing; another user is not affected."""
    for _ in range(3):
        few.grant(user(), cus=8)
    before = picture(few.ledger)
    assert is_over(few.agent.grant(user(), order_of(cus=8)))
    assert picture(few.ledger) == before
    assert few.grant(user(1001), cus=8)


def test_an_ended_lease_counts_no_more(few: House) -> None:
    """A release gives the place in the quota back."""
    leases = [few.grant(user(), cus=8) for _ in range(3)]
    few.release(leases[0], user())
    assert few.grant(user(), cus=8)


def test_what_is_not_clean_counts(build, effect: ScriptedEffect) -> None:
    """threat 17: who leaves memory behind has its place in the quota taken by it, until it is clean."""
    house = build(limits=QuotaLimits(2, 2, FAST), effect=effect)
    lease = house.grant(user(), cus=8)
    effect.script = {"undo": ["memory is still charged"] * 1000}
    house.release(lease, user())
    effect.script.clear()
    house.grant(user(), cus=8)
    refused = house.agent.grant(user(), order_of(cus=8))
    assert is_over(refused)
    assert "1 are not proved clean" in refused.why
    house.agent.clear_lease(admin(), lease.id)
    assert house.grant(user(), cus=8)


def test_subordinate_uids_share_their_owners_quota(few: House) -> None:
    """Leases of mapped uids count for their owner, whoever of them asks."""
    few.grant(user(1000), cus=8)
    few.grant(user(100_001), cus=8)
    few.grant(user(100_002), cus=8)
    for uid in (1000, 100_001, 100_002):
        assert is_over(few.agent.grant(user(uid), order_of(cus=8)))
    assert few.grant(user(1001), cus=8)


def test_a_subordinate_uid_still_owns_its_own_lease(few: House) -> None:
    """The charge moves to the owner; the lease stays its holder's."""
    lease = few.grant(user(100_001), cus=8)
    assert lease.holder.uid == 100_001
    assert few.release(lease, user(100_001)).state == "released"


def test_administrators_are_not_counted(few: House) -> None:
    """Root takes more than any user may."""
    for _ in range(5):
        assert few.grant(admin(), cus=8)


def test_so_many_requests_of_a_user_wait_and_no_more(few: House) -> None:
    """The third waiting one is refused; so is a lease beyond those that wait and will be live."""
    few.grant(admin(), count=2)
    few.grant(user(), cus=8, wait=60)
    few.grant(user(), cus=8, wait=60)
    assert is_over(few.agent.grant(user(), order_of(cus=8, wait=60)))
    assert few.grant(user(1001), cus=8, wait=60)


def test_waiting_requests_do_not_lead_past_the_quota(few: House) -> None:
    """Two live and one waiting are three: the next is refused, and so the queue cannot make four of them."""
    blocker = few.grant(admin(), count=1)
    for _ in range(2):
        few.grant(user(), cus=8)
    few.grant(user(), cus=64, wait=60)
    assert is_over(few.agent.grant(user(), order_of(cus=8)))
    few.release(blocker)
    few.look()
    assert few.ledger.counts(1000).live == 3


def test_grants_beyond_the_rate_are_refused_for_a_while(build, clock: TurnedClock) -> None:
    """TooMany says when to come back; coming back then succeeds; a repeated request costs nothing."""
    house = build(limits=QuotaLimits(100, 100, 5.0))
    for number in range(5):
        house.grant(user(), cus=2, request_id=f"r{number}")
    with pytest.raises(TooMany) as refused:
        house.grant(user(), cus=2)
    assert house.grant(user(), cus=2, request_id="r0")
    assert house.grant(user(1001), cus=2)
    clock.turn(refused.value.retry_after)
    assert house.grant(user(), cus=2)


def test_refused_tries_do_not_use_up_the_rate(clock: TurnedClock) -> None:
    """Whoever tries ten times a second is let in five times a second, not never."""
    quotas = Quotas(QuotaLimits(grants_per_second=5.0), clock, lambda uid: uid)
    came_through = 0
    for _ in range(100):
        clock.now_ns += SECOND // 10
        try:
            quotas.take_token(user())
        except TooMany:
            continue
        came_through += 1
    assert 50 <= came_through <= 56


def test_a_rate_below_one_a_second_lets_one_through(clock: TurnedClock) -> None:
    """Half a grant a second is one in two seconds, not none."""
    quotas = Quotas(QuotaLimits(grants_per_second=0.5), clock, lambda uid: uid)
    quotas.take_token(user())
    with pytest.raises(TooMany):
        quotas.take_token(user())
    clock.turn(2)
    quotas.take_token(user())


def test_subordinate_uids_share_their_owners_rate(clock: TurnedClock) -> None:
    """The sixth grant of a second is one too many, from whatever uid of the owner's."""
    quotas = Quotas(QuotaLimits(grants_per_second=5.0), clock, owner_of)
    for uid in (1000, 100_001, 100_002, 100_001, 1000):
        quotas.take_token(user(uid))
    with pytest.raises(TooMany):
        quotas.take_token(user(100_002))


def test_administrators_have_no_rate(clock: TurnedClock) -> None:
    """A prolog of root is never told to slow down."""
    quotas = Quotas(QuotaLimits(grants_per_second=1.0), clock, owner_of)
    for _ in range(20):
        quotas.take_token(admin())
