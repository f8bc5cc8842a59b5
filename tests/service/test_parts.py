"""The small parts by themselves: locks, changes, rights, survey; and leases on large machines."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from service_builders import GIB, House, admin, order_of, until, user

from nodeagent.domain.cuset import CuSet
from nodeagent.domain.device import DeviceState
from nodeagent.domain.lease import AnchorKind, HolderKind
from nodeagent.domain.records import Drain, Registered
from nodeagent.service.changes import Changes
from nodeagent.service.locks import LeaseLocks
from nodeagent.service.rights import owns
from nodeagent.service.survey import drained, with_epochs


def test_a_lease_lock_lets_one_in_and_keeps_no_others() -> None:
    """Two of one lease exclude each other, two of different leases do not; nothing is left over."""
    locks, entered = LeaseLocks(), threading.Event()

    def enter() -> None:
        with locks.of(1):
            entered.set()

    thread = threading.Thread(target=enter)
    with locks.of(1), locks.of(2):
        thread.start()
        until(lambda: locks._users[1] == 2)
        assert not entered.is_set()
    thread.join(20)
    assert entered.is_set()
    assert (locks._locks, dict(locks._users)) == ({}, {})


def test_a_change_wakes_whoever_waits() -> None:
    """A wait looks again at each announcement, and gives up at its end."""
    changes, seen = Changes(), []
    looks: list[int] = []

    def look() -> str | None:
        looks.append(1)
        return seen[0] if seen else None

    found: list[str | None] = []
    thread = threading.Thread(target=lambda: found.append(changes.wait_for(look, 20)))
    thread.start()
    until(lambda: len(looks) == 1)
    changes.announce()
    until(lambda: len(looks) == 2)
    seen.append("there")
    changes.announce()
    thread.join(20)
    assert found == ["there"]
    assert Changes().wait_for(lambda: None, 0) is None


def test_who_waits_is_let_go_when_the_process_is_to_end() -> None:
    """Who waits, or comes to wait, looks once more and no longer, unless this process still does it."""
    changes, looks, found = Changes(), [], []
    thread = threading.Thread(target=lambda: found.append(changes.wait_for(lambda: looks.append(1), 60)))
    thread.start()
    until(lambda: len(looks) == 1)
    changes.close()
    thread.join(20)
    assert (found, len(looks)) == ([None], 2)
    assert changes.wait_for(lambda: None, 60) is None
    third = iter((None, None, "there"))
    thread = threading.Thread(
        target=lambda: found.append(changes.wait_for(lambda: next(third), 60, lease_id=1, through_close=True))
    )
    thread.start()
    until(lambda: changes._waiters)
    while thread.is_alive():
        changes.announce(1)
        thread.join(0.01)
    assert found == [None, "there"]


def test_every_listener_hears_every_change() -> None:
    """The reconciler among them, which looks at the lease that it is of."""
    changes, heard = Changes(), []
    changes.listen(heard.append)
    changes.announce()
    changes.announce(7)
    assert heard == [None, 7]


def test_a_container_root_owns_nothing_and_an_administrator_all(house: House) -> None:
    """Rights follow uid and administration, not uid 0 by itself."""
    roots, users = house.grant(admin(), cus=8), house.grant(user(), cus=8)
    assert [owns(caller, users) for caller in (user(), user(1001), user(0), admin())] == [
        True,
        False,
        False,
        True,
    ]
    assert not owns(user(0), roots)


def registered(device: str, **changes: object) -> Registered:
    values = {
        "device": device,
        "epoch": 4,
        "pool": "p",
        "cus": 64,
        "queue_slots": 24,
        "compute_partition": None,
        "memory_partition": None,
    }
    return Registered(**{**values, **changes})


@pytest.mark.parametrize(
    ("last", "epoch"),
    [
        ({}, 4),
        ({"compute_partition": "CPX"}, 5),
        ({"memory_partition": "NPS4"}, 5),
        ({"cus": 38}, 5),
        ({"queue_slots": 8}, 4),
    ],
)
def test_another_mode_or_size_opens_an_epoch(house: House, last, epoch) -> None:
    """What leases were cut from is another device now."""
    inventory = house.agent.inventory()
    key = inventory.devices[0].key
    found = with_epochs(inventory, [registered(key, **last)])
    assert found.device(key).epoch == epoch
    assert found.devices[1].epoch == inventory.devices[1].epoch


def test_an_unhealthy_device_keeps_its_epoch(house: House) -> None:
    """What a bad read says of its size opens none."""
    inventory = house.agent.inventory()
    key = inventory.devices[0].key
    sick = replace(inventory.devices[0], state=DeviceState.UNHEALTHY, geometry=None)
    found = with_epochs(replace(inventory, devices=(sick,)), [registered(key)])
    assert found.device(key).epoch == 4


def test_a_drain_hides_no_sickness(house: House) -> None:
    """A sick device stays sick with its reason; a healthy one shows the drain's."""
    inventory = house.agent.inventory()
    sick = replace(inventory.devices[0], state=DeviceState.UNHEALTHY, reason="broken")
    drains = tuple(Drain(device.key, "later", 0, None, "b", 0.0) for device in inventory.devices)
    found = drained(replace(inventory, devices=(sick, inventory.devices[1])), drains)
    assert [(device.state, device.reason) for device in found.devices] == [
        (DeviceState.UNHEALTHY, "broken"),
        (DeviceState.DRAINING, "later"),
    ]


def test_free_is_what_no_live_slice_holds(house: House) -> None:
    """CUs, bytes and slots of a device less those of its slices."""
    device = house.agent.inventory().devices[0]
    lease = house.grant(cus=16, vram_bytes=GIB, queue_slots=3, device=(device.key,))
    (held,) = lease.slices
    free = house.agent.free(device.key)
    assert free.cus == CuSet.span(0, 64) - held.placed.cus
    assert free.vram_bytes == device.grantable_bytes - GIB
    assert free.queue_slots == device.queue_slots - 3


def test_partitions_of_one_pool_share_its_bytes(build) -> None:
    """On a partitioned card what one partition's lease takes of the pool is gone for its siblings."""
    house = build("mi300x-cpx")
    inventory = house.agent.inventory()
    first = inventory.devices[0]
    siblings = [device for device in inventory.devices if device.pool == first.pool]
    assert len(siblings) > 1
    pool = inventory.pool(first.pool)
    leases = [house.grant(cus=2, device=(device.key,), vram_percent=100) for device in siblings]
    taken = sum(held.placed.vram_bytes for lease in leases for held in lease.slices)
    assert taken <= pool.grantable_bytes
    assert house.agent.free(first.key).vram_bytes == 0


def test_a_quarter_of_an_mi300x_and_its_fifth_lease(build) -> None:
    """25 % is 64 CUs; four of them leave 48 CUs, and a fifth is refused with its blockers."""
    house = build("mi300x-spx")
    key = house.agent.inventory().devices[0].key
    leases = [house.grant(cu_percent=25, device=(key,)) for _ in range(4)]
    assert {len(held.placed.cus) for lease in leases for held in lease.slices} == {64}
    assert len(house.agent.free(key).cus) == 48
    refusal = house.agent.grant(admin(), order_of(cu_percent=25, device=(key,)))
    assert refusal.blockers == tuple(lease.id for lease in leases)


def test_holders_of_all_kinds_are_kept_as_they_came(house: House) -> None:
    """Kind, id and uid of the holder are those of the order and the peer."""
    lease = house.grant(admin(), cus=8, holder=(HolderKind.DOCKER, "c0ffee"), anchor=AnchorKind.EXTERNAL)
    assert (lease.holder.kind, lease.holder.id, lease.holder.uid) == (HolderKind.DOCKER, "c0ffee", 0)
    assert house.agent.leases(admin(), holder=(HolderKind.DOCKER, "c0ffee")) == (lease,)
