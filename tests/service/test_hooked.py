"""The hook tier as the use cases see it: who gets its files, and what is then stated of the lease."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from service_builders import House, admin, order_of

from nodeagent.adapters.hook_files import HookFiles
from nodeagent.config import Hook
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.guarantee import Compute, Hold, Memory, Requirement
from nodeagent.domain.lease import Lease
from nodeagent.domain.refusals import Refusal
from nodeagent.domain.request import Priority, Request, SliceRequest
from nodeagent.service.charging import devices_of
from nodeagent.service.effects import Planned, Told
from nodeagent.service.hooked import HookEffect, HookMeans
from nodeagent.service.means import Setting

pytestmark = pytest.mark.root
MIB = 1 << 20
Build = Callable[..., House]


@pytest.fixture
def files(hook_files: HookFiles) -> HookFiles:
    return hook_files


def setting_of(house: House, lease: Lease, **changed: object) -> Setting:
    placed = tuple(held.placed for held in lease.slices)
    fields = {
        "uid": 1000,
        "demanded": Requirement(),
        "cgroup": None,
        "adopted": False,
        "placed": placed,
        "inventory": house.agent.inventory(),
    }
    return Setting(**{**fields, **changed})  # type: ignore[arg-type]


def planned(house: House, files: HookFiles, lease: Lease, **changed: object) -> Planned:
    (one,) = HookMeans(files).plan(lease.id, setting_of(house, lease, **changed))
    return one


def test_the_files_say_what_the_lease_has(house: House, files: HookFiles) -> None:
    """Less bytes than the slice, by KFD's id and render node, and its CUs; a whole device has no mask."""
    part, whole = house.grant(cus=8, vram_bytes=1 << 30), house.grant()
    (sliced,) = planned(house, files, part).arguments["devices"]
    (full,) = planned(house, files, whole).arguments["devices"]
    assert sliced["limit_bytes"] == (1 << 30) - 64 * MIB
    assert sliced["cus"] == str(part.slices[0].placed.cus)
    assert full["cus"] == ""
    assert full["gpu_id"] == house.agent.inventory().device(whole.slices[0].placed.device).gpu_id


def test_what_is_verified_is_stated(house: House, files: HookFiles) -> None:
    """The evidence says what holds, and what loads the library; apply again changes nothing."""
    plan = planned(house, files, house.grant(cus=8))
    effect = HookEffect(files)
    evidence = effect.apply(plan.arguments)
    assert effect.apply(plan.arguments) == evidence
    verified = effect.verify(plan.arguments, evidence)
    assert verified["holds"] == {"memory": "hook", "compute": "hook", "queues": "hook"}
    assert verified["environment"]["GPULEASE_HOOK"] == evidence["limits"]
    assert Path(verified["environment"]["LD_PRELOAD"]).is_file()


@pytest.mark.parametrize(
    ("asked", "part", "whole"), [(Priority.LOW, 0, 0), (Priority.NORMAL, 7, None), (Priority.HIGH, 11, 11)]
)
def test_queues_have_the_level_that_was_asked_for(
    house: House, files: HookFiles, asked: Priority, part: int, whole: int | None
) -> None:
    """Who has a device to itself orders its own queues, unless a level was asked for: then none is stated."""
    for lease, level in ((house.grant(cus=8), part), (house.grant(), whole)):
        plan = planned(house, files, lease, queue_priority=asked)
        assert [one.queue_level for one in devices_of(plan.arguments)] == [level]
        effect = HookEffect(files)
        held = effect.verify(plan.arguments, effect.apply(plan.arguments))["holds"]
        assert held.get("queues") == (None if level is None else "hook")


def test_a_lease_from_before_there_were_levels_goes_on(house: House, files: HookFiles) -> None:
    """Its queues are as its programs ask, its file is as it was, and nothing else is stated of it."""
    plan = planned(house, files, house.grant(cus=8))
    old = {name: value for name, value in plan.arguments.items() if name != "queue_levels"}
    effect = HookEffect(files)
    assert effect.verify(old, effect.apply(old))["holds"] == {"memory": "hook", "compute": "hook"}
    assert [one.queue_level for one in devices_of(old)] == [None]


def test_a_changed_file_is_a_fault(house: House, files: HookFiles) -> None:
    """Nothing is stated on the strength of a file that reads otherwise."""
    plan = planned(house, files, house.grant(cus=8))
    effect = HookEffect(files)
    path = Path(str(effect.apply(plan.arguments)["limits"]))
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(OutsideFault, match="otherwise"):
        effect.verify(plan.arguments, {})


def test_an_ended_lease_leaves_no_file(house: House, files: HookFiles) -> None:
    """Undo takes away what apply made, and what was never made is no fault."""
    plan = planned(house, files, house.grant(cus=8))
    effect = HookEffect(files)
    path = Path(str(effect.apply(plan.arguments)["limits"]))
    for _ in range(2):
        assert effect.undo(plan.arguments, {}) == {"removed": True}
    assert not path.exists()


def test_what_runs_already_is_not_hooked(house: House, files: HookFiles) -> None:
    """An adopted process has loaded what it has loaded, so nothing is promised of it."""
    means, setting = HookMeans(files), setting_of(house, house.grant(cus=8), adopted=True)
    assert means.promise(setting) == Hold()
    assert means.plan(1, setting) == []


@pytest.mark.parametrize(
    ("floor", "strict"), [(None, False), (Memory.ADVISORY, False), (Memory.HOOK, True), (Memory.KERNEL, True)]
)
def test_who_demands_a_fence_gets_one_that_fails_closed(
    house: House, files: HookFiles, floor: Memory | None, strict: bool
) -> None:
    """Without its usage file such a lease's programs get no VRAM, instead of a warning."""
    plan = planned(house, files, house.grant(cus=8), demanded=Requirement(memory=floor))
    assert plan.arguments["strict"] is strict


def test_a_lease_is_granted_with_the_hook_and_says_so(build: Build, files: HookFiles) -> None:
    """A demanded hook is met where the node has it, and refused where it is turned off."""
    request = Request((SliceRequest(cus=8),), require=Requirement(memory=Memory.HOOK))
    off = build(hook=files, config={"hook": Hook(enabled=False)})
    assert isinstance(off.agent.grant(admin(), order_of(request=request)), Refusal)
    off.die()
    house = build(hook=files)
    lease = house.grant(request=request)
    assert (lease.guarantee.memory, lease.guarantee.compute) == (Memory.HOOK, Compute.HOOK)
    assert lease.environment is not None
    assert lease.environment["GPULEASE_HOOK"] == str(files.limits_path(lease.id))
    house.release(lease)
    assert not files.limits_path(lease.id).exists()


def test_what_programs_tell_is_heard_and_a_spoiled_file_is_not(build: Build, files: HookFiles) -> None:
    """By slice; None without the hook, of an ended lease, and where the holder made it unreadable."""
    off = build()
    without = off.grant(cus=8)
    off.die()
    house = build(hook=files)
    lease = house.grant(cus=8)
    assert house.agent.told(without) is None
    assert house.agent.told(lease) == Told((0,), 0)
    os.truncate(files.usage_path(lease.id), 1)
    assert house.agent.told(lease) is None
    assert house.agent.told(house.release(lease)) is None


def test_a_node_without_the_library_says_so(house: House, tmp_path: Path) -> None:
    """The tier names what is missing, and a lease is granted without it."""
    means = HookMeans(HookFiles("gpulease_test", root=tmp_path / "hook", library=tmp_path / "none.so"))
    assert not means.tier().present
    assert "compiler" in means.tier().why
    assert means.plan(1, setting_of(house, house.grant(cus=8))) == []
