"""Classes as they hold: for who may name them, and from the request to the last renewal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from service_builders import House, admin, order_of, user

from nodeagent.api.models import LeaseOrderBody
from nodeagent.api.orders import digest
from nodeagent.api.orders import order_of as order_in
from nodeagent.config import Class, Limits
from nodeagent.domain.errors import InvalidField, NotAllowed
from nodeagent.domain.guarantee import Memory
from nodeagent.domain.lease import Lease, LeaseState
from nodeagent.domain.refusals import Code, Refusal
from nodeagent.domain.request import Policy, Priority, Shape
from nodeagent.service.orders import Caller, Granted, Queued

GIB = 1 << 30
STAFF = 64_501
SMALL = Class(default=True, vram="2GiB", cu="25%", shape="exact", placement="spread", ttl_seconds=60)
BIG = Class(groups=[STAFF], max_vram="8GiB", max_cus=32, priority="high", max_ttl_seconds=600)
NIGHT = Class(users=[1001], kinds=["client"], priority="low", require={"memory": "advisory"})


@pytest.fixture
def house(build) -> House:
    """A site with a class for all, one of a group's and one of a user's."""
    return build(config={"classes": {"small": SMALL, "big": BIG, "night": NIGHT}})


def staff(uid: int = 1002) -> Caller:
    return replace(user(uid), groups=frozenset({STAFF}))


def ask(house: House, caller: Caller, **body: Any) -> Granted | Queued | Refusal:
    order = order_in(LeaseOrderBody.model_validate(body), caller, house.agent.class_of)
    return house.agent.grant(caller, order)


def lease(outcome: object) -> Lease:
    assert isinstance(outcome, Granted | Queued), outcome
    return outcome.lease


def test_who_names_no_class_gets_the_default_one(house: House) -> None:
    """Sizes, shape, placement and life of the class, and its name with the lease, also after a restart."""
    got = lease(ask(house, user()))
    (held,) = got.slices
    assert (held.placed.vram_bytes, held.placed.cu_requested) == (2 * GIB, 16)
    assert (held.placed.shape, got.request.placement) == (Shape.EXACT, Policy.SPREAD)
    assert (got.anchor.ttl_seconds, got.request.class_name) == (60, "small")


def test_what_is_said_counts(house: House) -> None:
    """Each word of the request wins over the class's, be it the word that would be the default."""
    body = {
        "slices": [{"cus": 8, "vram_bytes": GIB, "shape": "even"}],
        "placement": "binpack",
        "ttl_seconds": 5,
    }
    got = lease(ask(house, user(), **body))
    (held,) = got.slices
    assert (held.placed.vram_bytes, held.placed.cu_requested, held.placed.shape) == (GIB, 8, Shape.EVEN)
    assert (got.request.placement, got.anchor.ttl_seconds) == (Policy.BINPACK, 5)


@pytest.mark.parametrize(
    ("caller", "name"),
    [(user(1000), "big"), (user(1000), "night"), (staff(), "night"), (user(1001), "none"), (admin(), "none")],
)
def test_nobody_names_anothers_class(house: House, caller: Caller, name: str) -> None:
    """What is not there and what is not the caller's are refused alike, with the names of its own."""
    with pytest.raises(InvalidField, match=f"class_name: {name} is no class of yours: you may") as no:
        ask(house, caller, class_name=name)
    listed = str(no.value).partition("you may name ")[2].split(", ")
    assert listed == [one.name for one in house.agent.classes(caller)]


def test_a_class_is_for_its_kinds_of_holders(house: House) -> None:
    """One for clients is not named by a process."""
    assert lease(ask(house, user(1001), class_name="night")).request.priority is Priority.LOW
    with pytest.raises(InvalidField, match="class_name"):
        ask(house, user(1001), class_name="night", holder={"kind": "process"})


def test_the_most_of_a_class_is_refused(house: House) -> None:
    """A percentage or a whole device that is more is refused, and does not wait; less is granted."""
    for waiting in ({}, {"wait_seconds": 60}):
        refused = ask(house, staff(), class_name="big", **waiting)
        assert isinstance(refused, Refusal) and refused.code is Code.QUOTA_NOT_FIT
        assert refused.why == "class big, VRAM: 15.8 GiB asked, 8.0 GiB allowed"
    assert lease(ask(house, staff(), class_name="big", slices=[{"cu_percent": 50.0}]))


def test_the_longest_life_of_a_class_includes_renewals(house: House) -> None:
    """No longer one is asked for, none is had by saying nothing, and no renewal leads beyond it."""
    part = [{"cus": 4}]
    with pytest.raises(InvalidField, match="ttl_seconds: must lie between 1 and 600"):
        ask(house, staff(), class_name="big", slices=part, ttl_seconds=601)
    got = lease(ask(house, staff(), class_name="big", slices=part))
    assert got.anchor.ttl_seconds == 600
    mine = lease(ask(house, staff(), class_name="big", slices=part, holder={"kind": "process"}))
    assert mine.anchor.deadline_ns == mine.created_ns + 600 * 10**9
    house.clock.turn(300)
    for _ in range(2):
        renewed = house.agent.renew(staff(), got.id, 600)
        assert renewed.anchor.deadline_ns == got.created_ns + 600 * 10**9
    house.clock.turn(301)
    house.look()
    assert {house.state(got.id), house.state(mine.id)} == {LeaseState.RELEASED}


def test_renewing_before_the_holder_comes_lengthens_nothing(house: House) -> None:
    """Neither the time to come in, nor what the lease has from then on."""
    cgroup = {"slices": [{"cus": 4}], "anchor": {"kind": "cgroup"}}
    got = lease(ask(house, staff(), class_name="big", **cgroup))
    assert not got.anchor.armed
    renewed = house.agent.renew(staff(), got.id, 86_400)
    assert renewed.anchor.deadline_ns == got.anchor.deadline_ns
    assert renewed.anchor.ttl_seconds == 600


def test_high_priority_is_a_classs_or_the_sites_to_give(house: House, build) -> None:
    """Without either only an administrator goes before all others."""
    part = {"slices": [{"cus": 4}], "priority": "high"}
    with pytest.raises(NotAllowed, match=r"priority high: .* normal at most"):
        ask(house, user(), **part)
    assert lease(ask(house, staff(), class_name="big", **part)).request.priority is Priority.HIGH
    with pytest.raises(NotAllowed, match=r"priority normal: .* low at most"):
        ask(house, user(1001), class_name="night", priority="normal")
    house.die()
    open_site = build(config={"limits": Limits(priority="high")})
    assert lease(ask(open_site, user(), **part)).request.priority is Priority.HIGH


def test_high_priority_of_users_keeps_devices_for_a_while_only(build) -> None:
    """Threat 20: a user's request that goes first uses up the time of keeping like any other."""
    house = build(config={"limits": Limits(priority="high", keep_seconds=0)})
    taken = house.grant(admin(), count=2)
    waiting = lease(ask(house, user(), priority="high", slices=[{"count": 2}], wait_seconds=600))
    house.look()
    house.release(taken)
    assert isinstance(house.agent.grant(user(1001), order_of(cus=64, ttl=7200)), Granted)
    assert house.state(waiting.id) is LeaseState.QUEUED


def test_a_class_demands_tiers(build) -> None:
    """The stronger demand of class and request counts."""
    house = build(config={"classes": {"fenced": Class(require={"memory": "kernel"})}})
    refused = ask(house, user(), class_name="fenced", require={"memory": "hook"})
    assert isinstance(refused, Refusal) and refused.code is Code.GUARANTEE_NOT_MET
    body = LeaseOrderBody.model_validate({"class_name": "fenced", "require": {"memory": "hook"}})
    assert order_in(body, user(), house.agent.class_of).request.require.memory is Memory.KERNEL


def test_who_may_use_no_default_class_has_to_name_one(build) -> None:
    """Where the site has defaults nobody goes without a class; administrators may."""
    default = Class(groups=[STAFF], default=True)
    house = build(config={"classes": {"staff": default, "open": Class(users=[1000])}})
    with pytest.raises(InvalidField, match="class_name: has to be said: you may name open"):
        ask(house, user(1000))
    with pytest.raises(InvalidField, match="class_name: has to be said: there is none for you"):
        ask(house, user(1001))
    assert lease(ask(house, admin(), slices=[{"cus": 4}])).request.class_name is None


def test_a_class_that_is_gone_holds_nobody(house: House, build) -> None:
    """Leases of a class that the site took out go on, and may be renewed."""
    got = lease(ask(house, staff(), class_name="big", slices=[{"cus": 4}]))
    house.die()
    after = build()
    assert after.agent.renew(staff(), got.id, 3600).request.class_name == "big"


def test_a_request_without_a_class_is_the_same_as_ever() -> None:
    """Its digest has no class in it, so that a repeated request of before is known."""
    without, with_one = (LeaseOrderBody.model_validate(one) for one in ({}, {"class_name": "big"}))
    assert digest(without) != digest(with_one)
    assert digest(without) == "04b7ff99370d7d25385d959c241b88bd48457ee72644bace0b3c6c2b3365341d"


def test_the_classes_that_one_may_name_are_told(house: House) -> None:
    """In the site's order, and to nobody another's."""
    told = [[one.name for one in house.agent.classes(who)] for who in (user(), user(1001), staff(), admin())]
    assert told == [["small"], ["small", "night"], ["small", "big"], ["small", "big", "night"]]
