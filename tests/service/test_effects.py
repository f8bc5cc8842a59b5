"""Effects and the journal that walks them, by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from service_builders import GIB, House, admin, outside
from service_world import ScriptedEffect, TurnedClock

from nodeagent.adapters.cgroup import CgroupRef, CgroupTree
from nodeagent.adapters.processes import start_time_of
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.lease import AnchorKind
from nodeagent.domain.records import EffectState
from nodeagent.service.cgroup_effects import CgroupEffect, DmemEffect, OccupantsEffect, ProcessEffect
from nodeagent.service.effects import Journal, Pending
from nodeagent.service.kernel import KernelMeans
from nodeagent.service.plan import Planner


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
    journal = Journal(house.ledger, {**house.tiers.effects, **effects})
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
    journal = Journal(house.ledger, {**house.tiers.effects, "a": effect}, pause=pauses.append)
    assert journal.undo(planned(house, "a"), 60).pending is None
    assert (effect.calls["undo"], len(pauses)) == (4, 3)


def test_what_is_undone_is_not_undone_again(house: House) -> None:
    """An entry with its proof on record is passed over."""
    effect = ScriptedEffect()
    lease = planned(house, "a")
    (record,) = [record for record in house.ledger.effects(lease) if record.kind == "a"]
    with house.ledger.write() as tx:
        tx.mark_effect(record.id, EffectState.UNDONE, {})
    walk = Journal(house.ledger, {**house.tiers.effects, "a": effect}).undo(lease, 0)
    assert "a" not in [done.record.kind for done in walk.done]
    assert effect.calls["undo"] == 0


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


def test_memory_is_proved_back_also_where_the_journal_knows_no_cgroup(plain_tree: CgroupTree) -> None:
    """As in a backup from before the lease was active: its cgroup is found by its name."""
    dmem = FakeDmem()
    arguments = dmem_arguments(plain_tree)
    dmem.used = {"drm/a/vram": 4096}
    assert isinstance(DmemEffect(plain_tree, dmem).undo(arguments, {}), Pending)


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
    planner = Planner(plain_tree, None, [KernelMeans(FakeDmem())], clock)
    (cgroup,) = planner.home(lease.id, admin(), lease.anchor, adopted=False)
    assert (cgroup.kind, cgroup.arguments["lease"]) == ("cgroup", lease.id)
    with house.ledger.write() as tx:
        record = tx.plan_effect(lease.id, cgroup.kind, cgroup.arguments)
    inventory = house.agent.inventory()
    pool = replace(inventory.pools[0], region="drm/renderD128/vram")
    inventory = replace(inventory, pools=(pool, *inventory.pools[1:]))
    dmem, occupants = planner.limits(
        lease.id, 0, lease.request, [record], [held.placed for held in lease.slices], inventory
    )
    assert (dmem.kind, occupants.kind) == ("dmem", "occupants")
    mine = [held.placed.vram_bytes for held in lease.slices if held.placed.pool == pool.key]
    assert dmem.arguments["regions"] == {"drm/renderD128/vram": sum(mine)}


def test_the_tiers_say_what_is_missing(house: House, plain_tree: CgroupTree, clock: TurnedClock) -> None:
    """Each tier is present, or says why not."""
    bare = Planner(None, "no cgroup2 mount", [KernelMeans(None)], clock).tiers()
    assert [(tier.present, tier.why) for tier in bare] == [
        (False, "no cgroup2 mount"),
        (False, "needs a cgroup2 mount"),
    ]
    assert all(tier.present for tier in Planner(plain_tree, None, [KernelMeans(FakeDmem())], clock).tiers())
