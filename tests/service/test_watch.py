"""The watch over real processes in real cgroups, with KFD's figures of them written by the test."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from service_builders import GIB, House, admin, node_directory, until, user

from nodeagent.adapters.fdinfo import drm_clients
from nodeagent.adapters.kfd_usage import PROC, kfd_use, sdma_us
from nodeagent.adapters.processes import start_time_of
from nodeagent.adapters.sysfs import SysTree
from nodeagent.domain.lease import AnchorKind, Lease, LeaseState
from nodeagent.domain.records import Event
from nodeagent.service.foreign import Foreign
from nodeagent.service.owners import owners
from nodeagent.service.sampling import Sources
from nodeagent.service.watch import Watch, WatchPolicy

CGROUP = AnchorKind.CGROUP
REPORT, KILL = WatchPolicy(), WatchPolicy(kill=True)


class Figures:
    """What KFD says of processes on one device: the lease's, or the first."""

    def __init__(self, house: House, lease: Lease | None = None) -> None:
        self.root = house.root
        for device in house.survey.found().devices:  # copied trees lack the ids
            (node_directory(house.root, device.kfd_node) / "gpu_id").write_text(f"{device.kfd_node + 100}")
        found = house.survey.rescan()
        device = found.device(lease.slices[0].placed.device) if lease else found.devices[0]
        assert device is not None
        self.device, self.gpu_id = device, device.gpu_id

    def set(self, pid: int, vram: int, *, waves: int = 0, sdma: int = 0, queues: int = 0) -> None:
        process = self.root / PROC / str(pid)
        for queue in range(queues):
            (process / f"queues/{queue}").mkdir(parents=True, exist_ok=True)
            (process / f"queues/{queue}/gpuid").write_text(str(self.gpu_id))
        (process / f"stats_{self.gpu_id}").mkdir(parents=True, exist_ok=True)
        (process / f"stats_{self.gpu_id}/cu_occupancy").write_text(str(waves))
        (process / f"vram_{self.gpu_id}").write_text(str(vram))
        (process / f"sdma_{self.gpu_id}").write_text(str(sdma))

    def end(self, pid: int) -> None:
        shutil.rmtree(self.root / PROC / str(pid))


def watch_of(house: House, policy: WatchPolicy = REPORT, **changes: Any) -> tuple[Watch, Foreign]:
    tree, foreign = SysTree(house.root), Foreign()
    sources = Sources(
        kfd=changes.get("kfd", lambda pids: kfd_use(tree, pids)),
        drm=lambda pids: drm_clients(house.root / "proc", pids),
        sdma_us=lambda pids: sdma_us(tree, pids),
    )
    house.survey._foreign = foreign.by_device
    watch = Watch(
        house.ledger,
        house.clock,
        house.survey,
        house.releaser,
        house.changes,
        house.tree,
        None,
        sources,
        foreign,
        policy,
        changes.get("further", ()),
        changes.get("stop"),
        over=changes.get("over", lambda leases: None),
        spared=changes.get("spared", lambda: False),
    )
    return watch, foreign


def events(house: House, kind: str) -> list[Event]:
    return [event for event in house.ledger.events() if event.kind == kind]


@pytest.fixture
def busy(home: House, children) -> tuple[House, Lease, int]:
    """A lease of 2 GiB with one process in its cgroup."""
    child = children.sleeper()
    lease = home.grant(user(), cus=8, vram_bytes=2 * GIB, anchor=AnchorKind.TTL)
    home.enter(lease, child.pid)
    return home, lease, child.pid


@pytest.mark.cgroup2
@pytest.mark.way_out("using more than the lease", tier="watch", outcome="told after two looks; not refused")
def test_overuse_is_told_once_after_two_looks(busy) -> None:
    """One look may see a passing state; from the second on it is an event, once for as long as it lasts."""
    house, lease, pid = busy
    watch, _ = watch_of(house)
    figures = Figures(house, lease)
    figures.set(pid, 3 * GIB)
    watch.look()
    assert events(house, "overuse") == []
    watch.look()
    watch.look()
    (told,) = events(house, "overuse")
    (region,) = told.data["regions"].values()
    assert (told.lease, region) == (lease.id, {"used_bytes": 3 * GIB, "granted_bytes": 2 * GIB})
    assert house.state(lease.id) is LeaseState.ACTIVE
    figures.set(pid, GIB)
    watch.look()
    figures.set(pid, 3 * GIB)
    watch.look()
    watch.look()
    assert len(events(house, "overuse")) == 2


@pytest.mark.cgroup2
@pytest.mark.way_out(
    "using more than the lease, with on_overuse = kill",
    tier="watch",
    outcome="the lease ends, after three looks",
)
def test_a_site_may_end_leases_for_overuse(busy) -> None:
    """With on_overuse = kill the lease ends, and what runs in its cgroup with it."""
    house, lease, pid = busy
    watch, _ = watch_of(house, KILL)
    Figures(house, lease).set(pid, 3 * GIB)
    watch.look()
    assert house.state(lease.id) is LeaseState.ACTIVE
    watch.look()
    until(lambda: house.state(lease.id) is LeaseState.RELEASED)
    assert "overuse_ended" in house.kinds(lease)


@pytest.mark.cgroup2
def test_while_bypassed_overuse_is_told_and_ends_nothing(busy) -> None:
    """Whatever the site says: it ends the lease once the bypass is over."""
    house, lease, pid = busy
    spared = [True]
    watch, _ = watch_of(house, KILL, spared=lambda: spared[0])
    Figures(house, lease).set(pid, 3 * GIB)
    for _ in range(3):
        watch.look()
    assert house.state(lease.id) is LeaseState.ACTIVE and len(events(house, "overuse")) == 1
    spared[0] = False
    watch.look()
    until(lambda: house.state(lease.id) is LeaseState.RELEASED)


@pytest.mark.cgroup2
def test_no_lease_ends_for_a_process_that_ended_meanwhile(busy, children) -> None:
    """Threat 30: a pid that is another process by the last look, or in another cgroup, ends nothing."""
    house, lease, pid = busy
    figures, tree = Figures(house, lease), SysTree(house.root)
    figures.set(pid, 3 * GIB)
    looks = 0

    def kfd(pids):
        nonlocal looks
        looks += 1
        rows = kfd_use(tree, pids)
        if pids is not None and looks % 2 == 0:  # between the identities of the last sample
            (house.tree.mount / "cgroup.procs").write_text(str(pid))
        return rows

    watch, _ = watch_of(house, KILL, kfd=kfd)
    watch.look()
    watch.look()
    assert events(house, "overuse")
    assert house.state(lease.id) is LeaseState.ACTIVE
    assert "overuse_ended" not in house.kinds(lease)


@pytest.mark.cgroup2
def test_no_lease_ends_for_memory_that_is_shared_with_it(busy) -> None:
    """Threat 30: a buffer that another one allocated and passed on is not this lease's use."""
    house, lease, pid = busy
    figures = Figures(house, lease)
    process = house.root / "proc" / str(pid)
    (process / "fd").mkdir(parents=True)
    (process / "fdinfo").mkdir()
    (process / "fd/5").symlink_to(f"/dev/dri/{figures.device.render_node}")
    (process / "fdinfo/5").write_text(
        "drm-driver: amdgpu\ndrm-client-id: 3\ndrm-resident-vram: 9 MiB\ndrm-resident-vram: 6291456 KiB\n"
        "drm-shared-vram: 6291456 KiB\n"
    )
    figures.set(pid, GIB)
    watch, _ = watch_of(house, KILL)
    for _ in range(3):
        watch.look()
    assert events(house, "overuse") == []
    assert house.state(lease.id) is LeaseState.ACTIVE


@pytest.mark.cgroup2
def test_a_cgroup_made_anew_is_not_the_leases(busy, children) -> None:
    """Threats 14 and 30: the recorded path with another inode makes nobody's use the lease's."""
    house, lease, pid = busy
    assert owners(house.ledger, house.tree, house.clock).of(pid).owner == lease.id
    other = children.sleeper()
    ref = house.tree.resolve(lease.cgroup)
    with house.tree.open(ref) as cgroup:
        cgroup.kill()
        until(lambda: not cgroup.populated())
    house.tree.remove(ref)
    again = house.tree.create(lease.id)
    assert again.path == ref.path
    with house.tree.open(again) as cgroup:
        cgroup.move(other.pid)
    assert owners(house.ledger, house.tree, house.clock).of(other.pid).owner is None


def test_without_cgroups_the_holders_process_counts(house: House, children) -> None:
    """The recorded process and its children are the lease's; a recycled pid is not."""
    child = children.sleeper()
    lease = house.grant(admin(child.pid), cus=8, anchor=AnchorKind.PROCESS, pid=child.pid)
    whose = owners(house.ledger, None, house.clock)
    assert whose.of(child.pid).owner == lease.id
    assert whose.processes == {(child.pid, start_time_of(child.pid)): lease.id}
    recycled = {(child.pid, 1): lease.id}
    assert type(whose)(None, {}, {}, recycled).of(child.pid).owner is None
    house.clock.reboot()
    assert owners(house.ledger, None, house.clock).processes == {}


@pytest.mark.cgroup2
def test_a_lease_that_does_not_get_on_is_told_with_its_mask(busy) -> None:
    """LEASE_STALLED: waves and nothing that moves for long, copies looked at last."""
    house, lease, pid = busy
    watch, _ = watch_of(house, WatchPolicy(stalled_seconds=60))
    figures = Figures(house, lease)
    figures.set(pid, GIB, waves=8, queues=1, sdma=5)
    for _ in range(4):
        watch.look()
        house.clock.turn(31)
    assert events(house, "lease_stalled") == []
    watch.look()
    watch.look()
    (told,) = events(house, "lease_stalled")
    placed = lease.slices[0].placed
    assert told.lease == lease.id
    assert told.data["masks"] == {placed.device: f"{placed.cus.bits:#x}"}


@pytest.mark.cgroup2
def test_copies_are_progress(busy) -> None:
    """SDMA time that goes on begins the wait anew."""
    house, lease, pid = busy
    watch, _ = watch_of(house, WatchPolicy(stalled_seconds=60))
    figures = Figures(house, lease)
    for copied in range(12):
        figures.set(pid, GIB, waves=8, queues=1, sdma=copied)
        watch.look()
        house.clock.turn(31)
    assert events(house, "lease_stalled") == []


@pytest.mark.way_out(
    "using a GPU without a lease", tier="watch", outcome="told, and not granted to others; not refused"
)
def test_foreign_users_are_told_once_and_not_granted(house: House, children) -> None:
    """Who uses a GPU in no lease is an event for administrators, and comes off what may be granted."""
    child = children.sleeper()
    watch, _ = watch_of(house)
    figures = Figures(house)
    before = house.agent.free(figures.device.key).vram_bytes
    figures.set(child.pid, 2 * GIB, queues=1)
    watch.look()
    watch.look()
    (told,) = events(house, "foreign_user")
    assert (told.device, told.data["pids"], told.data["vram_bytes"]) == (
        figures.device.key,
        [child.pid],
        2 * GIB,
    )
    assert house.agent.events(user()) == ()
    assert house.agent.free(figures.device.key).vram_bytes == before - 2 * GIB
    assert house.agent.device(figures.device.key).foreign_bytes == 2 * GIB
    figures.end(child.pid)
    watch.look()
    assert house.agent.free(figures.device.key).vram_bytes == before


def test_a_foreign_container_that_is_stopped_is_told(house: House, children) -> None:
    """Each time that one is, with its device; of a process that is in none, nothing is."""
    inside, outside = children.sleeper(), children.sleeper()
    watch, _ = watch_of(house, stop={inside.pid: "c0ffee"}.get)
    figures = Figures(house)
    for child in (inside, outside):
        figures.set(child.pid, GIB, queues=1)
    watch.look()
    (told,) = events(house, "container_stopped")
    assert (told.device, told.data) == (figures.device.key, {"container": "c0ffee"})
    assert "docker.on_foreign" in (told.reason or "")


def test_foreign_use_takes_nothing_from_who_holds(house: House, children) -> None:
    """A device that is granted in full stays so, and its leases live on."""
    child = children.sleeper()
    watch, _ = watch_of(house)
    lease = house.grant(cus=8, vram_bytes=4 * GIB)
    figures = Figures(house, lease)
    figures.set(child.pid, 1 << 50)
    watch.look()
    house.look()
    assert house.state(lease.id) is LeaseState.ACTIVE
    device = house.agent.device(figures.device.key)
    assert device.grantable_bytes == 4 * GIB


def test_the_watch_goes_on_after_a_fault(house: House) -> None:
    """A look that fails is logged, and the next one is taken."""
    faults = iter([OSError("made to fail"), RuntimeError("unforeseen")])

    def kfd(pids):
        for fault in faults:
            raise fault
        return ()

    watch, _ = watch_of(house, kfd=kfd)
    for _ in range(3):
        watch.guarded_look()
    assert watch._failing is None


def test_the_watch_looks_by_itself(house: House, children) -> None:
    """Its own thread looks every few seconds, and ends when it is told to."""
    child = children.sleeper()
    watch, foreign = watch_of(house, WatchPolicy(seconds=0.01))
    Figures(house).set(child.pid, GIB)
    watch.start()
    until(foreign.by_device)
    watch.stop()
    assert watch._thread is not None
    assert not watch._thread.is_alive()
