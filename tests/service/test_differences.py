"""Differences between node and ledger: found with the kernel's own cgroups, acted on once, told once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from service_builders import House, admin, until, user
from service_world import ScriptedEffect, TurnedClock
from structlog.testing import capture_logs

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.hook_files import HookFiles
from nodeagent.adapters.hook_format import HookDevice
from nodeagent.domain.cuset import CuSet
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.lease import AnchorKind, Lease, LeaseState
from nodeagent.ledger.backup import backup
from nodeagent.service.differences import Differences
from nodeagent.service.effects import Pending

pytestmark = pytest.mark.cgroup2
DEVICE = HookDevice(gpu_id=1, render_minor=128, limit_bytes=1 << 30, device_cus=64, unit=1, cus=CuSet())


class Units:
    """systemd with these units."""

    def __init__(self, *names: str) -> None:
        self.names = set(names)

    def slices(self, pattern: str) -> frozenset[str]:
        return frozenset(self.names)

    def stop(self, name: str) -> None:
        self.names.discard(name)


def done(house: House) -> list[tuple[str, int | None]]:
    """The actions that were taken, by the events that tell of them."""
    return [
        (event.data["action"], event.lease) for event in house.ledger.events() if event.kind == "reconciled"
    ]


def test_an_empty_cgroup_of_no_lease_is_removed(build, tree: CgroupTree) -> None:
    """Told by one event, however often it is looked; a lease's own stays."""
    home = build(tree=tree)
    lease = home.grant(cus=8, anchor=AnchorKind.CGROUP)
    tree.create(900_000)
    home.look()
    home.look()
    assert set(tree.existing()) == {lease.id}
    assert done(home) == [("remove_cgroup", 900_000)]


def test_a_populated_cgroup_of_no_lease_is_told_once_and_left(build, tree: CgroupTree, children) -> None:
    """It stops grants until it is empty, and goes then."""
    home = build(tree=tree)
    child = children.sleeper()
    with tree.open(tree.create(900_000)) as cgroup:
        cgroup.move(child.pid)
    with capture_logs() as logs:
        home.look()
        home.look()
    assert [entry["action"] for entry in logs if entry["event"] == "the node differs from the ledger"] == [
        "report_cgroup"
    ]
    assert child.poll() is None
    assert "900000.slice" in home.agent.unready()
    child.kill()
    child.wait()
    home.look()
    assert home.agent.unready() is None
    assert tree.existing() == {}


@pytest.fixture
def job(tree: CgroupTree) -> Iterator[Path]:
    """A cgroup as a batch system makes one for a job, outside the agent's subtree."""
    job = tree.mount / f"job_{tree.instance[1:-6]}"
    job.mkdir()
    yield job
    for directory in (*job.glob(tree.names), job):
        directory.rmdir()


def lose(house: House) -> None:
    """Kill the agent, and take all that it keeps."""
    house.die()
    shutil.rmtree(house.sidecar_files.path(1).parent)
    for file in house.root.with_name("state").iterdir():
        if file.is_file():
            file.unlink()


def test_a_nested_lease_that_nobody_remembers_stops_grants(build, tree, job: Path, children) -> None:
    """With ledger and sidecars lost its cgroup below the job's is the only sign of it."""
    home = build(tree=tree, timeout=20)
    caller, child = children.sleeper(), children.sleeper()
    (job / "cgroup.procs").write_text(str(caller.pid))
    lease = home.grant(admin(caller.pid), cus=8)
    home.enter(lease, child.pid)
    assert lease.cgroup.startswith(f"/{job.name}/")
    lose(home)
    again = build(tree=tree, timeout=20)
    assert lease.cgroup in again.agent.unready()
    again.look()
    assert child.poll() is None
    child.kill()
    child.wait()
    caller.kill()
    caller.wait()
    again.look()
    assert again.agent.unready() is None
    assert done(again) == [("remove_cgroup", lease.id)]
    assert again.grant(cus=8).id > lease.id


def test_a_nested_lease_that_the_ledger_knows_is_left(build, tree, job: Path, children) -> None:
    """A restart under it finds a lease and its cgroup, and nothing to do."""
    home = build(tree=tree, timeout=20)
    caller = children.sleeper()
    (job / "cgroup.procs").write_text(str(caller.pid))
    lease = home.grant(admin(caller.pid), cus=8)
    home.die()
    again = build(tree=tree, timeout=20)
    again.look()
    assert (again.agent.unready(), done(again)) == (None, [])
    assert again.release(lease).state is LeaseState.RELEASED


def test_hook_files_of_no_lease_are_removed(build, tree: CgroupTree, hook_files: HookFiles) -> None:
    """Those that a crash left; a live lease's stay."""
    home = build(tree=tree, hook=hook_files)
    lease = home.grant(cus=8)
    assert hook_files.leases() == {lease.id}
    hook_files.prepare(90, 0, [DEVICE], strict=False)
    home.look()
    assert hook_files.leases() == {lease.id}
    assert done(home) == [("remove_files", 90)]


def test_hook_files_stay_under_a_process(build, tree: CgroupTree, hook_files: HookFiles, children) -> None:
    """A program whose lease the ledger lost keeps its limits for as long as it runs."""
    home = build(tree=tree, hook=hook_files)
    child = children.sleeper()
    with tree.open(tree.create(90)) as cgroup:
        cgroup.move(child.pid)
    hook_files.prepare(90, 0, [DEVICE], strict=False)
    home.look()
    assert hook_files.leases() == {90}
    child.kill()
    child.wait()
    home.look()
    assert hook_files.leases() == frozenset()


def test_a_unit_of_no_lease_is_stopped(build, tree: CgroupTree, clock: TurnedClock, children) -> None:
    """Not one of a lease's, and not under a process, which systemd would end."""
    home = build(tree=tree)
    lease, child = home.grant(cus=8), children.sleeper()
    with tree.open(tree.create(80)) as cgroup:
        cgroup.move(child.pid)
    units = Units(tree.name(lease.id), tree.name(80), tree.name(90), "user-1000.slice")
    Differences(home.ledger, clock, tree, units, [home.hook], home.sidecars).look()
    assert units.names == {tree.name(lease.id), tree.name(80), "user-1000.slice"}
    assert child.poll() is None
    assert done(home) == [("stop_unit", 90)]


def frozen(tree: CgroupTree, lease: Lease) -> bool:
    with tree.open(tree.resolve(lease.cgroup)) as cgroup:
        return cgroup.frozen()


def test_a_live_lease_on_a_frozen_cgroup_is_thawed(build, tree: CgroupTree, children, tmp_path) -> None:
    """A backup from before a release, restored in its middle: the lease lives, and who enters it runs."""
    held_up = ScriptedEffect(script={"undo": [Pending("made to wait")] * 100_000})
    home = build(tree=tree, effect=held_up, timeout=60)
    lease = home.grant(cus=8, anchor=AnchorKind.TTL)
    backup(tmp_path / "state/ledger.sqlite3", tmp_path / "copy")
    home.releaser.end(lease.id, uid=0, reason="made to end")
    until(lambda: frozen(tree, lease))
    home.die()
    for file in (tmp_path / "state").glob("ledger.sqlite3-*"):
        file.unlink()
    shutil.copyfile(tmp_path / "copy", tmp_path / "state/ledger.sqlite3")
    again = build(tree=tree, effect=ScriptedEffect(), timeout=20)
    assert (again.state(lease.id), frozen(tree, lease)) == (LeaseState.ACTIVE, False)
    assert done(again) == [("thaw_cgroup", lease.id)]
    assert again.release(lease).state is LeaseState.RELEASED


def test_who_entered_since_a_restored_backup_is_not_reaped(
    build, tree: CgroupTree, children, tmp_path, clock
) -> None:
    """A backup from between grant and attach says that nobody is in yet: who is in holds the lease."""
    home = build(tree=tree)
    asked, child = children.sleeper(), children.sleeper()
    lease = home.grant(user(pid=asked.pid), cus=8, anchor=AnchorKind.CGROUP)
    backup(tmp_path / "state/ledger.sqlite3", tmp_path / "copy")
    home.enter(lease, child.pid)
    home.die()
    for file in (tmp_path / "state").glob("ledger.sqlite3-*"):
        file.unlink()
    shutil.copyfile(tmp_path / "copy", tmp_path / "state/ledger.sqlite3")
    asked.kill()
    asked.wait()
    clock.turn(1000)
    again = build(tree=tree)
    again.look()
    assert again.state(lease.id) is LeaseState.ACTIVE and child.poll() is None
    child.kill()
    child.wait()
    until(lambda: again.look() or again.state(lease.id) is LeaseState.RELEASED)


def test_who_freezes_a_live_lease_later_means_it(build, tree: CgroupTree) -> None:
    """An administrator who stops a lease's programs to look at them is not overruled."""
    home = build(tree=tree)
    lease = home.grant(cus=8)
    with tree.open(tree.resolve(lease.cgroup)) as cgroup:
        cgroup.freeze()
    home.look()
    assert frozen(tree, lease)
    assert done(home) == []


def test_an_action_that_does_not_take_is_told_with_the_reason(build, tree: CgroupTree, monkeypatch) -> None:
    """Once, and again only when the reason is another; what it stands for is not counted as done."""
    home = build(tree=tree)
    tree.create(900_000)
    faults = iter(["first", "first", "second"])

    def fail(ref: object) -> None:
        raise OutsideFault("here", next(faults))

    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(tree, "remove", fail)
        for _ in range(3):
            home.look()
    told = [entry["why"] for entry in logs if entry["event"] == "an action did not take"]
    assert told == ["here: first", "here: second"]
    assert done(home) == []
    home.look()
    assert done(home) == [("remove_cgroup", 900_000)]


def test_an_action_without_effect_is_told_too(build, tree: CgroupTree, monkeypatch) -> None:
    """It raised nothing, and the difference is there as before: looked at again, said, and no event."""
    home = build(tree=tree)
    tree.create(900_000)
    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(tree, "remove", lambda ref: None)
        home.look()
        home.look()
    assert [entry["event"] for entry in logs if entry.get("lease") == 900_000] == ["an action did not take"]
    assert done(home) == []


def test_what_comes_about_during_a_look_is_the_next_ones(build, tree: CgroupTree, monkeypatch) -> None:
    """It was not tried yet, so it is no failure: under load each ended lease's sidecar was called one."""
    home = build(tree=tree)
    tree.create(900_000)
    remove = tree.remove

    def remove_and_find_another(ref: object) -> None:
        remove(ref)
        tree.create(900_001)

    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(tree, "remove", remove_and_find_another)
        home.look()
    assert [entry for entry in logs if entry["event"] == "an action did not take"] == []
    home.look()
    assert done(home) == [("remove_cgroup", 900_000), ("remove_cgroup", 900_001)]


def test_nothing_is_granted_before_the_first_comparison(build, tree: CgroupTree, monkeypatch) -> None:
    """A node that cannot be looked at may be full of strangers."""

    def fail(files: HookFiles) -> None:
        raise OutsideFault(files, "made to fail")

    monkeypatch.setattr(HookFiles, "leases", fail)
    home = build(tree=tree)
    assert "not compared" in home.agent.unready()
    monkeypatch.undo()
    home.look()
    assert home.agent.unready() is None
