"""What the site says of single devices, as it is held when leases are booked."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from service_builders import admin, order_of

from nodeagent.config import Devices
from nodeagent.domain.ownership import Asker
from nodeagent.domain.refusals import Code, Refusal
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
