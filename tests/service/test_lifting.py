"""Limits that are lifted while nothing is enforced, and come back."""

from __future__ import annotations

from service_builders import GIB, House
from test_kernel_tier import World

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.domain.records import EffectRecord, EffectState
from nodeagent.service.lifting import lift_all


def test_while_any_kind_is_observed_nothing_is_closed(home: House, tree: CgroupTree) -> None:
    """What is closed outside would hit who has no lease; afterwards it is closed anew."""
    world = World(home, tree)
    world.tier.look()
    world.opened = "mode.slurm observes"
    world.tier.look()
    world.tier.look()
    assert world.outside.released == 1
    assert world.tier.why_not([world.region]) == "mode.slurm observes"
    world.outside.caps.clear()
    world.opened = None
    world.tier.look()
    assert world.outside.caps and world.tier.why_not([world.region]) is None


def test_a_bypass_lifts_leases_limits_and_its_end_puts_them_back(home: House, tree: CgroupTree) -> None:
    """A look at a time, and the events say why."""
    lease = home.grant(vram_bytes=GIB)
    world = World(home, tree)
    ref = tree.resolve(str(lease.cgroup))
    assert ref is not None
    with home.ledger.write() as tx:
        effect = tx.plan_effect(lease.id, "dmem", {"regions": {world.region: GIB}})
        tx.mark_effect(effect.id, EffectState.VERIFIED, {"path": ref.path, "inode": ref.inode})
    world.tier.look()
    assert world.dmem.held[ref.path][world.region] == GIB
    world.opened, world.lifted = "bypass", True
    world.tier.look()
    assert set(world.dmem.held[ref.path].values()) == {None}
    world.opened, world.lifted = None, False
    world.tier.look()
    assert world.dmem.held[ref.path][world.region] == GIB
    told = [event.reason for event in home.ledger.events(lease=lease.id) if event.kind == "limit_restored"]
    assert told[-1] == "enforced again"


def test_a_job_keeps_the_lower_limit_of_slurm_itself(home: House, tree: CgroupTree) -> None:
    """Only what the agent wrote is lifted there."""
    lease = home.grant(vram_bytes=GIB)
    world = World(home, tree)
    ref = tree.resolve(str(lease.cgroup))
    assert ref is not None
    told = {"regions": {world.region: GIB}, "name": "job_42"}
    where = {"path": ref.path, "inode": ref.inode}
    record = EffectRecord(1, lease.id, "dmem", told, EffectState.VERIFIED, where, 0)
    world.dmem.held[ref.path] = {world.region: GIB // 2}
    assert lift_all(world.dmem, [record]) == 0
    world.dmem.held[ref.path] = {world.region: GIB}
    assert lift_all(world.dmem, [record]) == 1
    assert world.dmem.held[ref.path] == {world.region: None}
