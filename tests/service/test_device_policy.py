"""What the site says of single devices, as it is held when leases are booked."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from service_builders import admin, order_of, user

from nodeagent.config import Devices
from nodeagent.domain.lease import HolderKind, LeaseState
from nodeagent.domain.ownership import Asker
from nodeagent.domain.refusals import Code, Refusal
from nodeagent.domain.request import Request, SliceRequest
from nodeagent.service.orders import Behalf, Caller, Granted
from nodeagent.service.placing import Placer


def small(**more):
    return order_of(cus=4, vram_bytes=1 << 28, queue_slots=1, device=("renderD128",), **more)


def test_requests_at_the_same_moment_get_no_more_shares_than_there_are(build) -> None:
    """Each searched before the others were booked; the ledger's lock has them look again."""
    house = build(config={"devices": Devices(shares={"*": 3})})
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: house.agent.grant(admin(), small()), range(8)))
    refused = [one for one in answers if isinstance(one, Refusal)]
    assert len(answers) - len(refused) == len({held.lease for held in house.ledger.held()}) == 3
    assert {one.code for one in refused} == {Code.TIME_SLICING_EXHAUSTED}


def test_a_search_that_saw_a_free_share_looks_again_when_it_is_booked(build) -> None:
    """The draft was right when it was made, and is refused when the share is taken by then."""
    house = build(config={"devices": Devices(shares={"*": 1})})
    order = small()
    placer = Placer(house.planner, 25, lambda pci: None)
    draft = placer.draft(0, Asker(), house.survey.inventory(), (), order.request)
    assert not isinstance(draft.placed, Refusal)
    house.grant(request=order.request)
    settled = placer.settle(draft, house.ledger.held())
    assert isinstance(settled, Refusal)
    assert settled.code is Code.TIME_SLICING_EXHAUSTED


def test_one_who_waits_for_a_share_gets_it(build) -> None:
    """A share that comes free goes to the queue, like all else of a device."""
    house = build(config={"devices": Devices(shares={"*": 1})})
    first = house.grant(request=small().request)
    waiting = house.agent.grant(admin(), small(wait=60))
    assert waiting.lease.state == "queued"
    house.release(first)
    house.settle()
    house.look()
    assert house.state(waiting.lease.id) == "active"


ALICE, BOB, CAROL, DAVE, ML = 1001, 1002, 1003, 1004, 2000


def reserving(build, *parties: str, **more):
    """An agent whose devices are for *parties* alone; of the group ML the database lists nobody."""
    return build(config={"devices": Devices(reserved={"*": list(parties)})}, **more)


def of_groups(uid: int, *groups: int) -> Caller:
    return replace(user(uid), groups=frozenset(groups))


def test_a_reserved_device_is_for_who_is_named(build) -> None:
    """The user, the caller's group, and whoever has a subordinate uid of the user's."""
    owners = {100_000: ALICE}
    house = reserving(build, f"user:{ALICE}", f"group:{ML}", owner_of=lambda uid: owners.get(uid, uid))
    for caller in (user(ALICE), user(100_000), of_groups(BOB, ML), replace(user(DAVE), gid=ML)):
        assert isinstance(house.agent.grant(caller, order_of(cus=4)), Granted)
    for caller in (user(CAROL), of_groups(CAROL, 5), admin()):
        refusal = house.agent.grant(caller, order_of(cus=4))
        assert isinstance(refusal, Refusal)
        assert refusal.code is Code.RESERVED_FOR_OTHERS


def test_a_job_counts_for_its_user(build) -> None:
    """Root asks for it, and names the device; that opens nothing to a user who is not named."""
    house = reserving(build, f"user:{ALICE}")
    job = replace(small(), holder_kind=HolderKind.SLURM)
    refusal = house.agent.grant(admin(), replace(job, behalf=Behalf(BOB, BOB)))
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.RESERVED_FOR_OTHERS
    assert isinstance(house.agent.grant(admin(), replace(job, behalf=Behalf(ALICE, ALICE))), Granted)


def test_one_who_waits_gets_no_device_of_others(build) -> None:
    """Who may never have it is refused at once; who may waits, and gets it in turn, by its group too."""
    house = reserving(build, f"group:{ML}")
    assert isinstance(house.agent.grant(user(BOB), order_of(cus=4, wait=60)), Refusal)
    one = of_groups(ALICE, ML)
    first = house.grant(one, request=Request((SliceRequest(count=2),)))
    waiting = house.agent.grant(one, order_of(cus=4, wait=60))
    assert waiting.lease.state is LeaseState.QUEUED
    house.release(first)
    house.settle()
    house.look()
    assert house.state(waiting.lease.id) is LeaseState.ACTIVE
