"""The small parts by themselves: journal, locks, changes, effects, plan, survey."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace

import pytest
from service_builders import (
    GIB,
    House,
    ScriptedEffect,
    TurnedClock,
    admin,
    order_of,
    outside,
    until,
    user,
)

from nodeagent.adapters.cgroup import CgroupRef, CgroupTree
from nodeagent.adapters.processes import start_time_of
from nodeagent.domain.cuset import CuSet
from nodeagent.domain.device import DeviceState
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.lease import AnchorKind, HolderKind
from nodeagent.domain.records import Drain, EffectState, Registered
from nodeagent.service.cgroup_effects import CgroupEffect, DmemEffect, OccupantsEffect, ProcessEffect
from nodeagent.service.changes import Changes
from nodeagent.service.effects import Journal, Pending
from nodeagent.service.locks import LeaseLocks
from nodeagent.service.plan import Planner
from nodeagent.service.rights import owns
from nodeagent.service.survey import drained, with_epochs


def planned(house: House, *kinds: str) -> int:
    """A lease with a journal of *kinds*, in that order."""
    lease = house.grant(cus=8)
    with house.ledger.write() as tx:
        for kind in kinds:
            tx.plan_effect(lease.id, kind, {"lease": lease.id})
    return lease.id


def test_a_journal_is_applied_forwards_and_undone_backwards(house: House) -> None:
    """What was done last is undone first."""
    order: list[str] = []

    class Named(ScriptedEffect):
        def apply(self, arguments):
            order.append(f"+{self.name}")
            return {}

        def undo(self, arguments, evidence):
            order.append(f"-{self.name}")
            return {}

    effects = {}
    for name in "abc":
        effects[name] = Named()
        effects[name].name = name
    lease = planned(house, "a", "b", "c")
    journal = Journal(house.ledger, effects)
    journal.apply(lease)
    assert journal.undo(lease, 0).pending is None
    assert order == ["+a", "+b", "+c", "-c", "-b", "-a"]


def test_a_pending_undo_keeps_what_is_under_it(house: House) -> None:
    """The walk back stops at the first entry without proof; those above it are done."""
    lower, upper = ScriptedEffect(), ScriptedEffect()
    middle = ScriptedEffect(script={"undo": ["busy"] * 5})
    lease = planned(house, "lower", "middle", "upper")
    walk = Journal(house.ledger, {"lower": lower, "middle": middle, "upper": upper}).undo(lease, 0)
    assert walk.pending == Pending("busy")
    assert [done.record.kind for done in walk.done] == ["upper"]
    assert lower.calls["undo"] == 0


def test_an_undo_is_asked_again_until_it_is_proved(house: House) -> None:
    """Within its time the walk waits; between two looks it pauses."""
    pauses: list[float] = []
    effect = ScriptedEffect(script={"undo": ["busy", outside(), "busy"]})
    journal = Journal(house.ledger, {"a": effect}, pause=pauses.append)
    assert journal.undo(planned(house, "a"), 60).pending is None
    assert (effect.calls["undo"], len(pauses)) == (4, 3)


def test_what_is_undone_is_not_undone_again(house: House) -> None:
    """An entry with its proof on record is passed over."""
    effect = ScriptedEffect()
    lease = planned(house, "a")
    (record,) = house.ledger.effects(lease)
    with house.ledger.write() as tx:
        tx.mark_effect(record.id, EffectState.UNDONE, {})
    assert Journal(house.ledger, {"a": effect}).undo(lease, 0).done == ()
    assert effect.calls["undo"] == 0


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


def test_every_listener_hears_every_change() -> None:
    """The reconciler among them."""
    changes, heard = Changes(), []
    changes.listen(lambda: heard.append(1))
    changes.announce()
    changes.announce()
    assert heard == [1, 1]


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


class FakeDmem:
    """A dmem controller of one region, as the kernel's tables read."""

    def __init__(self, *, keeps: Mapping[str, int] | None = None) -> None:
        self.writes: list[tuple[str, int]] = []
        self.keeps = keeps
        self.used: dict[str, int] = {}

    def enable(self, path: str) -> None:
        return

    def unavailable(self) -> None:
        return None

    def capacity(self) -> dict[str, int]:
        return {"drm/renderD128/vram": 16 * GIB}

    def limit(self, ref: CgroupRef, region: str, limit_bytes: int) -> None:
        self.writes.append((region, limit_bytes))

    def limits(self, ref: CgroupRef) -> dict[str, int | None]:
        return dict(self.writes if self.keeps is None else self.keeps)

    def current(self, ref: CgroupRef) -> dict[str, int]:
        return self.used


@pytest.fixture
def plain_tree(tmp_path) -> CgroupTree:
    """A directory that stands in for a cgroup2 mount."""
    mount = tmp_path / "cgroup"
    mount.mkdir()
    (mount / "cgroup.procs").write_text("")
    return CgroupTree(mount, "gpulease.slice")


def dmem_arguments(tree: CgroupTree) -> dict[str, object]:
    tree.create(7)
    return {"lease": 7, "parent": None, "regions": {"drm/a/vram": 2 * GIB}}


def test_dmem_limits_are_written_once_a_region_and_read_back(plain_tree: CgroupTree) -> None:
    """What was read back is the evidence."""
    dmem = FakeDmem()
    effect = DmemEffect(plain_tree, dmem)
    arguments = dmem_arguments(plain_tree)
    evidence = effect.apply(arguments)
    assert dmem.writes == [("drm/a/vram", 2 * GIB)]
    assert effect.verify(arguments, evidence) == {"read_back": {"drm/a/vram": 2 * GIB}}


@pytest.mark.parametrize("reads", [{}, {"drm/a/vram": GIB}, {"drm/b/vram": 2 * GIB}])
def test_a_limit_that_reads_otherwise_is_a_fault(plain_tree: CgroupTree, reads) -> None:
    """The lease is not granted on a limit that did not take."""
    effect = DmemEffect(plain_tree, FakeDmem(keeps=reads))
    arguments = dmem_arguments(plain_tree)
    with pytest.raises(OutsideFault, match="was written"):
        effect.verify(arguments, effect.apply(arguments))


def test_charged_memory_keeps_the_slice(plain_tree: CgroupTree) -> None:
    """Until dmem.current is 0 the undo waits; another region's use is not this lease's."""
    dmem = FakeDmem()
    effect = DmemEffect(plain_tree, dmem)
    arguments = dmem_arguments(plain_tree)
    evidence = effect.apply(arguments)
    dmem.used = {"drm/a/vram": 4096, "drm/b/vram": 1}
    assert isinstance(effect.undo(arguments, evidence), Pending)
    dmem.used = {"drm/a/vram": 0, "drm/b/vram": 1}
    assert effect.undo(arguments, evidence) == {"current": 0}


def test_undoing_what_was_never_made_is_proof(plain_tree: CgroupTree) -> None:
    """A journal that was planned and not applied is undone without a trace."""
    arguments = {"lease": 8, "parent": None, "limits": {}, "regions": {}}
    for effect in (
        CgroupEffect(plain_tree),
        OccupantsEffect(plain_tree),
        DmemEffect(plain_tree, FakeDmem()),
    ):
        assert not isinstance(effect.undo(arguments, {}), Pending)


def test_a_vanished_cgroup_is_a_fault_while_preparing(plain_tree: CgroupTree) -> None:
    """The effects after the first need the cgroup that it made."""
    with pytest.raises(OutsideFault, match="vanished"):
        OccupantsEffect(plain_tree).apply({"lease": 9, "parent": None})
    with pytest.raises(OutsideFault, match="journal"):
        CgroupEffect(plain_tree).verify({}, {})


def test_a_process_of_an_older_boot_has_ended(clock: TurnedClock, children) -> None:
    """Pid and start time mean somebody else after a reboot."""
    child = children.sleeper()
    effect = ProcessEffect(clock, lambda pid: True)
    arguments = {
        "pid": child.pid,
        "start_time": start_time_of(child.pid),
        "boot_id": clock.boot_id,
        "strict": False,
    }
    assert isinstance(effect.undo(arguments, {}), Pending)
    clock.reboot()
    assert effect.undo(arguments, {}) == {"process": "ended"}


def test_the_plan_follows_what_the_node_has(house: House, plain_tree: CgroupTree, clock: TurnedClock) -> None:
    """Cgroup first, limits before anyone enters, occupants last; one limit a region, of all its slices."""
    lease = house.grant(count=2, anchor=AnchorKind.CGROUP)
    planner = Planner(plain_tree, None, FakeDmem(), clock)
    (cgroup,) = planner.home(lease.id, admin(), lease.anchor, adopted=False)
    assert (cgroup.kind, cgroup.arguments["lease"]) == ("cgroup", lease.id)
    with house.ledger.write() as tx:
        record = tx.plan_effect(lease.id, cgroup.kind, cgroup.arguments)
    inventory = house.agent.inventory()
    pool = replace(inventory.pools[0], region="drm/renderD128/vram")
    inventory = replace(inventory, pools=(pool, *inventory.pools[1:]))
    dmem, occupants = planner.limits([record], [held.placed for held in lease.slices], inventory)
    assert (dmem.kind, occupants.kind) == ("dmem", "occupants")
    mine = [held.placed.vram_bytes for held in lease.slices if held.placed.pool == pool.key]
    assert dmem.arguments["regions"] == {"drm/renderD128/vram": sum(mine)}


def test_the_tiers_say_what_is_missing(house: House, plain_tree: CgroupTree, clock: TurnedClock) -> None:
    """Each tier is present, or says why not."""
    bare = Planner(None, "no cgroup2 mount", None, clock).tiers()
    assert [(tier.present, tier.why) for tier in bare] == [
        (False, "no cgroup2 mount"),
        (False, "needs a cgroup2 mount"),
    ]
    assert all(tier.present for tier in Planner(plain_tree, None, FakeDmem(), clock).tiers())


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
