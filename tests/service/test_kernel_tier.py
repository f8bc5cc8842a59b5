"""When memory is stated as held by the kernel: tried, closed outside, read back; and what is mended."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from service_builders import GIB, House

from nodeagent.adapters.cgroup import CgroupRef, CgroupTree
from nodeagent.adapters.closure import Capping
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.guarantee import Hold, Memory
from nodeagent.domain.records import EffectRecord, EffectState
from nodeagent.service.cgroup_effects import DmemEffect
from nodeagent.service.closure import UNSEEN, Closing
from nodeagent.service.kernel import KernelMeans
from nodeagent.service.kernel_tier import KernelTier
from nodeagent.service.means import Setting

LEASE = "/gpulease.slice/gpulease-7.slice"


class Dmem:
    """A controller with a region for each of the machine's devices, and its limits by cgroup."""

    def __init__(self, regions: tuple[str, ...]) -> None:
        self.regions = regions
        self.held: dict[str, dict[str, int | None]] = {}
        self.closed_to_children: set[str] = set()

    def enable(self, path: str) -> None:
        return

    def unavailable(self) -> str | None:
        return None

    def capacity(self) -> dict[str, int]:
        return dict.fromkeys(self.regions, 16 * GIB)

    def divisible(self, path: str) -> bool:
        return path not in self.closed_to_children

    def limit(self, ref: CgroupRef, region: str, limit_bytes: int) -> None:
        self.held.setdefault(ref.path, {})[region] = limit_bytes

    def cap(self, ref: CgroupRef, region: str, limit_bytes: int | None) -> None:
        self.held.setdefault(ref.path, {})[region] = limit_bytes

    def lift(self, ref: CgroupRef, region: str) -> None:
        self.held.setdefault(ref.path, {})[region] = None

    def limits(self, ref: CgroupRef) -> Mapping[str, int | None]:
        return self.held.get(ref.path, {})

    def current(self, ref: CgroupRef) -> dict[str, int]:
        return {}


class Outside:
    """One cgroup outside leases, and what the kernel makes of a cap on it."""

    def __init__(self) -> None:
        self.caps: dict[str, Mapping[str, int]] = {}
        self.answer = Capping()
        self.stray: tuple[int, ...] = ()
        self.released = 0

    def children(self, path: str) -> list[str]:
        return ["user.slice"] if path == "/" else []

    def whole(self, path: str) -> bool:
        return False

    def strays(self) -> tuple[int, ...]:
        return self.stray

    def divide(self, path: str) -> None:
        return

    def regions(self) -> frozenset[str]:
        return frozenset()

    def cap(self, path: str, limits: Mapping[str, int]) -> Capping:
        self.caps[path] = limits
        return self.answer

    def release(self, keep: object = None) -> None:
        self.released += keep is None


class SelfTest:
    """Proves every region but those in *fails*."""

    def __init__(self) -> None:
        self.fails: dict[str, str] = {}
        self.runs: list[str] = []

    def run(self, region: str, render_node: str, gpu_id: int) -> str | None:
        self.runs.append(region)
        return self.fails.get(region)


class World:
    """The tier over scripted adapters, a real ledger and a machine's files."""

    def __init__(self, house: House, tree: CgroupTree, *, enabled: bool = True) -> None:
        self.house = house
        inventory = house.survey.found()
        self.region = inventory.pools[0].region
        self.dmem = Dmem(tuple(pool.region for pool in inventory.pools))
        self.outside, self.selftest = Outside(), SelfTest()
        self.left_out: str | None = None
        self.opened: str | None = None
        self.lifted = False
        closing = Closing(self.outside, tree, house.ledger, house.survey)
        self.tier = KernelTier(
            self.dmem,
            closing,
            self.selftest,
            house.ledger,
            house.survey,
            enabled=enabled,
            leave_out=lambda pci: self.left_out,
            opened=lambda: self.opened,
            lifted=lambda: self.lifted,
        )
        self.means = KernelMeans(self.dmem, self.tier)

    def kinds(self) -> list[str]:
        return [event.kind for event in self.house.ledger.events()]

    def setting(self, parent: str | None = None, *, adopted: bool = False) -> Setting:
        inventory = self.house.survey.found()
        device = inventory.devices[0]
        placed = SimpleNamespace(pool=device.pool, device=device.key, vram_bytes=GIB)
        cgroup = None if adopted else {"lease": 7, "parent": parent}
        return Setting(0, None, cgroup, adopted, (placed,), inventory)


@pytest.fixture
def plain_tree(tmp_path: Path) -> CgroupTree:
    """A directory that stands in for a cgroup2 mount, with one lease's cgroup."""
    mount = tmp_path / "cgroup"
    mount.mkdir()
    (mount / "cgroup.procs").write_text("")
    tree = CgroupTree(mount, "gpulease.slice")
    tree.create(7)
    return tree


@pytest.fixture
def world(house: House, plain_tree: CgroupTree) -> World:
    return World(house, plain_tree)


def test_kernel_is_promised_once_tried_and_closed(world: World) -> None:
    """Before the first look nothing is, and then each region was tried once and user.slice got nothing."""
    assert "not tried yet" in (world.tier.why_not([world.region]) or "")
    assert world.means.promise(world.setting()) == Hold()
    world.tier.look()
    world.tier.look()
    assert world.means.promise(world.setting()) == Hold(memory=Memory.KERNEL)
    assert sorted(world.selftest.runs) == sorted(world.dmem.regions)
    assert world.outside.caps == {"/user.slice": dict.fromkeys(world.dmem.regions, 0)}
    assert world.means.tier().present


def test_a_region_without_the_effect_has_no_tier_and_is_not_closed(world: World) -> None:
    """The others keep theirs, and the tier says which is missing."""
    world.selftest.fails = {world.region: "charged nothing"}
    world.tier.look()
    assert world.tier.why_not([world.region]) == "charged nothing"
    assert world.region not in world.outside.caps["/user.slice"]
    assert "charged nothing" in world.means.tier().why
    assert world.means.tier().present == (len(world.dmem.regions) > 1)


def test_a_device_that_drives_a_display_is_left_open(world: World) -> None:
    """It is neither tried nor closed, and the reason is told."""
    world.left_out = "drives a display"
    world.tier.look()
    assert world.selftest.runs == []
    assert world.outside.caps == {"/user.slice": {}}
    assert not world.means.tier().present


def test_a_break_is_told_once_and_stops_promises_until_mended(world: World) -> None:
    """A limit outside that the kernel does not take is an event, and so is its end."""
    world.tier.look()
    world.outside.answer = Capping(failed={world.region: "in use"})
    world.tier.look()
    world.tier.look()
    assert world.tier.why_not([world.region]) == "in use"
    assert world.means.promise(world.setting()) == Hold()
    world.outside.answer = Capping()
    world.tier.look()
    assert world.tier.why_not([world.region]) is None
    assert [kind for kind in world.kinds() if "closure" in kind] == ["closure_broken", "closure_restored"]


def test_a_limit_outside_that_was_put_back_is_told(world: World) -> None:
    """Whoever raised it had VRAM for a moment."""
    world.tier.look()
    world.outside.answer = Capping(restored=(world.region,))
    world.tier.look()
    assert world.kinds().count("closure_restored") == 1


def test_processes_in_the_root_cgroup_keep_it_open(world: World) -> None:
    """No limit reaches them, so nothing is promised."""
    world.outside.stray = (4711,)
    world.tier.look()
    assert "4711" in (world.tier.why_not([world.region]) or "")


def test_turned_off_it_takes_its_limits_back_once_and_promises_nothing(
    house: House, plain_tree: CgroupTree
) -> None:
    """Nothing is tried or closed."""
    world = World(house, plain_tree, enabled=False)
    world.tier.look()
    world.tier.look()
    assert world.outside.released == 1
    assert world.selftest.runs == []
    assert "closure.enabled" in (world.tier.why_not([world.region]) or "")


def test_a_region_is_open_until_a_look_closed_it(world: World) -> None:
    """What was never looked at is not said to be closed."""
    closing = Closing(world.outside, world.tier, world.house.ledger, world.house.survey)
    assert closing.why_open(world.region) == UNSEEN


def test_an_adopted_lease_is_promised_nothing(world: World) -> None:
    """Its memory was charged elsewhere."""
    world.tier.look()
    assert world.means.promise(world.setting(adopted=True)) == Hold()


def test_a_job_beside_its_lease_is_shared_only_where_the_closure_holds_it(world: World) -> None:
    """No child of a cgroup with processes can have a limit: the job has one, or nothing is planned."""
    world.dmem.closed_to_children = {"/system.slice/x.service"}
    setting = world.setting("/system.slice/x.service")
    assert world.means.plan(7, setting) == []
    world.tier.look()
    (planned,) = world.means.plan(7, setting)
    assert planned.arguments["shared"]
    (planned,) = world.means.plan(7, world.setting("/system.slice/slurmstepd.scope"))
    assert "shared" not in planned.arguments


def test_the_evidence_says_kernel_only_where_the_tier_holds(world: World, plain_tree: CgroupTree) -> None:
    """A limit that reads back is not enough."""
    effect = DmemEffect(plain_tree, world.dmem, world.tier)
    arguments = {"lease": 7, "parent": None, "regions": {world.region: GIB}}
    evidence = effect.apply(arguments)
    assert "holds" not in effect.verify(arguments, evidence)
    world.tier.look()
    assert effect.verify(arguments, evidence)["holds"] == {"memory": "kernel"}


def test_a_lease_gets_nothing_of_other_closed_regions(world: World, plain_tree: CgroupTree) -> None:
    """From its start, before anyone enters; what a nested lease was let through to meanwhile stays."""
    _, other = world.dmem.regions
    effect = DmemEffect(plain_tree, world.dmem, world.tier)
    arguments = {"lease": 7, "parent": None, "regions": {world.region: GIB}}
    effect.apply(arguments)
    assert world.dmem.held[LEASE] == {world.region: GIB}
    world.tier.look()
    effect.apply(arguments)
    assert world.dmem.held[LEASE] == {world.region: GIB, other: 0}
    world.dmem.held[LEASE][other] = 2 * GIB
    effect.apply(arguments)
    assert world.dmem.held[LEASE][other] == 2 * GIB


def test_the_look_holds_a_leases_other_regions(home: House, tree: CgroupTree) -> None:
    """A region that was closed after the grant is closed to the lease, too; its own limits are left."""
    lease = home.grant(vram_bytes=GIB)
    world = World(home, tree)
    world.tier.look()
    assert world.outside.caps[str(lease.cgroup)] == {
        region: 0 for region in world.dmem.regions if region != world.region
    }


def test_a_shared_lease_is_verified_at_its_job(world: World, plain_tree: CgroupTree) -> None:
    """The job must be held, at what its leases hold together."""
    (plain_tree.mount / "job").mkdir()
    plain_tree.create(8, "/job")
    effect = DmemEffect(plain_tree, world.dmem, world.tier)
    arguments = {"lease": 8, "parent": "/job", "regions": {world.region: GIB}, "shared": True}
    evidence = effect.apply(arguments)
    with pytest.raises(OutsideFault, match=r"dmem\.max reads None"):
        effect.verify(arguments, evidence)
    world.dmem.held["/job"] = {world.region: 3 * GIB}
    effect.verify(arguments, evidence)


def test_a_live_leases_limit_is_written_again(home: House, tree: CgroupTree) -> None:
    """Whoever raised it, the next look lowers it, and says so of that lease."""
    lease = home.grant(vram_bytes=GIB)
    world = World(home, tree)
    ref = tree.find(lease.id) or tree.resolve(str(lease.cgroup))
    assert ref is not None
    record = EffectRecord(
        1,
        lease.id,
        "dmem",
        {"regions": {world.region: GIB}},
        EffectState.VERIFIED,
        {"path": ref.path, "inode": ref.inode},
        0,
    )
    world.tier._restore_one(record)
    world.tier._restore_one(record)
    assert world.dmem.held[ref.path] == {world.region: GIB}
    assert home.kinds(lease).count("limit_restored") == 1


@pytest.mark.parametrize(("now", "then"), [(None, 4), (0, 4), (8, 4), (2, 2)])
def test_a_jobs_limit_is_lowered_and_never_raised(home: House, tree: CgroupTree, now, then) -> None:
    """In a job's own cgroup a lower limit is Slurm's; a 0 is the closure's, for jobs without leases."""
    lease = home.grant(vram_bytes=GIB)
    world = World(home, tree)
    ref = tree.resolve(str(lease.cgroup))
    arguments = {"regions": {world.region: 4 * GIB}, "name": "job_42"}
    evidence = {"path": ref.path, "inode": ref.inode}
    world.dmem.held[ref.path] = {world.region: now and now * GIB}
    world.tier._restore_one(EffectRecord(1, lease.id, "dmem", arguments, EffectState.VERIFIED, evidence, 0))
    assert world.dmem.held[ref.path] == {world.region: then * GIB}


def test_a_limit_that_cannot_be_put_back_keeps_no_other_out(home: House, tree: CgroupTree) -> None:
    """Up to Linux 7.2 none goes below what is used: that is a fault, and all others are looked after."""
    first, second = home.grant(vram_bytes=GIB), home.grant(vram_bytes=GIB)
    world = World(home, tree)

    def limit(ref: CgroupRef, region: str, limit_bytes: int) -> None:
        if ref.path == first.cgroup:
            raise OutsideFault("dmem.max", "max is in force")
        world.dmem.held[ref.path] = {region: limit_bytes}

    def limited(lease_id: int) -> list[EffectRecord]:
        ref = tree.resolve(str(home.ledger.lease(lease_id).cgroup))
        evidence = {"path": ref.path, "inode": ref.inode}
        arguments = {"regions": {world.region: GIB}}
        return [EffectRecord(1, lease_id, "dmem", arguments, EffectState.VERIFIED, evidence, 0)]

    def journals(of: list[int], kinds: tuple[str, ...]) -> dict[int, list[EffectRecord]]:
        return {lease_id: limited(lease_id) for lease_id in of}

    world.dmem.limit = limit
    world.tier._ledger = SimpleNamespace(live=home.ledger.live, journals=journals, write=home.ledger.write)
    with pytest.raises(OutsideFault, match="max is in force"):
        world.tier._restore()
    assert world.dmem.held == {second.cgroup: {world.region: GIB}}


def test_a_region_that_failed_is_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at every look, but in time: a probe may be late on a busy node."""
    world.selftest.fails = {world.region: "the probe said nothing"}
    world.tier.look()
    world.selftest.fails = {}
    world.tier.look()
    assert world.tier.why_not([world.region]) == "the probe said nothing"
    monkeypatch.setattr("nodeagent.service.kernel_tier.AGAIN_SECONDS", 0)
    world.tier.look()
    assert world.tier.why_not([world.region]) is None
