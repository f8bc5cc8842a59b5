"""A ledger that was lost under live leases: rebuilt from the sidecars, or grants stop with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from service_builders import House, admin, check_sound, order_of, touch_generation, until, user
from service_world import TurnedClock

from nodeagent.adapters.cgroup import CgroupRef, CgroupTree
from nodeagent.domain.errors import LedgerUnavailable
from nodeagent.domain.lease import AnchorKind, LeaseState, SliceState

pytestmark = pytest.mark.cgroup2
CGROUP = AnchorKind.CGROUP


def lose(house: House, state: Path) -> None:
    """End the agent, and take its ledger away."""
    house.die()
    for file in (state / "state").glob("ledger.sqlite3*"):
        file.unlink()
    (state / "state" / "ids").unlink(missing_ok=True)


def edit(house: House, lease: int, /, **parts: object) -> None:
    told = house.sidecar_files.read(lease)
    house.sidecar_files.write(lease, {**told, **parts})


def test_a_lease_has_its_sidecar_before_the_answer(build, tree: CgroupTree) -> None:
    """And says what the ledger says, so that a look has nothing to do."""
    home = build(tree=tree)
    lease = home.grant(cus=8, anchor=CGROUP)
    assert home.sidecars.leases() == {lease.id}
    assert home.sidecars.outdated(home.sidecars.wanted(), home.sidecars.leases()) == frozenset()
    assert home.release(lease).state is LeaseState.RELEASED
    home.look()
    assert home.sidecars.leases() == frozenset()


def test_a_missing_or_old_sidecar_is_written(build, tree: CgroupTree, children) -> None:
    """A crash between row and file, and what has changed of the lease since."""
    home = build(tree=tree)
    lease = home.grant(user(), cus=8, ttl=100)
    home.sidecar_files.remove(lease.id)
    home.look()
    home.agent.renew(user(), lease.id, 1000)
    home.look()
    assert home.sidecar_files.read(lease.id)["anchor"]["ttl_seconds"] == 1000


def test_a_lost_ledger_is_rebuilt(build, tree: CgroupTree, tmp_path, children) -> None:
    """Same id, same CUs, same cgroup, anchor, environment and journal; new ids are above; releasing works."""
    home = build(tree=tree, timeout=20)
    caller = children.peer(administrator=True)
    lease = home.grant(caller, cus=8, anchor=CGROUP, request_id="mine")
    shared = [home.grant(user(), cu_shared=True, vram_bytes=1 << 30) for _ in range(2)]
    home.agent.attach(caller, lease.id)
    home.look()
    before = [home.ledger.lease(each.id) for each in (lease, *shared)]
    journal = [(one.kind, one.arguments, one.state, one.evidence) for one in home.ledger.effects(lease.id)]
    lose(home, tmp_path)
    home = build(tree=tree, timeout=20)
    after = [home.ledger.lease(each.id) for each in (lease, *shared)]
    for was, now in zip(before, after, strict=True):
        assert [one.placed for one in now.slices] == [one.placed for one in was.slices]
        assert (now.state, now.anchor, now.holder, now.cgroup) == (
            was.state,
            was.anchor,
            was.holder,
            was.cgroup,
        )
        assert (now.environment, now.guarantee, now.created_ns) == (
            was.environment,
            was.guarantee,
            was.created_ns,
        )
    assert journal == [
        (one.kind, one.arguments, one.state, one.evidence) for one in home.ledger.effects(lease.id)
    ]
    assert home.ledger.check() == ()
    again = home.agent.grant(caller, order_of(cus=8, anchor=CGROUP, request_id="mine"))
    assert (again.lease.id, again.fresh) == (lease.id, False)
    assert home.grant(cus=8).id > max(each.id for each in shared)
    check_sound(home.ledger.held(), home)
    assert [event.data["action"] for event in home.ledger.events() if event.kind == "reconciled"] == [
        "rebuild_lease"
    ] * 3
    assert home.release(lease).state is LeaseState.RELEASED
    assert tree.resolve(lease.cgroup) is None


def test_a_rebuilt_lease_keeps_its_epoch(build, tree: CgroupTree, tmp_path) -> None:
    """A new ledger counts epochs on from what the sidecars say, and does not take the leases for lost."""
    home = build("mi300x-spx", tree=tree)
    device = home.agent.inventory().devices[0]
    pci = home.root / "sys/bus/pci/devices" / device.pci
    (pci / "current_memory_partition").write_text("NPS4\n")
    touch_generation(home.root, 3)
    home.look()
    lease = home.grant(cu_percent=25, device=(device.key,))
    assert lease.slices[0].placed.epoch == device.epoch + 1
    lose(home, tmp_path)
    home = build("mi300x-spx", tree=tree)
    home.look()
    assert home.state(lease.id) is LeaseState.ACTIVE
    assert home.agent.device(device.key).epoch == device.epoch + 1


def test_a_half_written_sidecar_goes_by_the_next_start(build, tree: CgroupTree) -> None:
    """Of a lease whose agent died while it wrote, and which then ended, nothing stays."""
    home = build(tree=tree)
    lease = home.grant(cus=8, anchor=CGROUP)
    left = home.sidecar_files.path(lease.id).with_suffix(".new")
    left.write_text("half")
    home.die()
    build(tree=tree)
    assert not left.exists()


def test_what_was_not_proved_clean_is_not_forgotten(
    build, tree: CgroupTree, tmp_path, children, monkeypatch
) -> None:
    """A quarantined slice is held again when the ledger is lost, and proved anew."""
    home = build(tree=tree, timeout=0.1)
    child = children.sleeper()
    lease = home.grant(cus=32, anchor=CGROUP)
    home.enter(lease, child.pid)
    with monkeypatch.context() as patch:
        patch.setattr("nodeagent.adapters.cgroup_directory.OpenCgroup.kill", lambda self: None)
        assert home.release(lease).state is LeaseState.FAILED
        home.look()
        lose(home, tmp_path)
        home = build(tree=tree, timeout=0.1)
        home.settle()
        assert home.state(lease.id) is LeaseState.FAILED
        assert [held.state for held in home.ledger.held()] == [SliceState.QUARANTINED]
    until(lambda: not home.ledger.held() or home.agent.clear_lease(admin(), lease.id) is None)
    assert child.wait(20) == -9


def test_without_its_sidecar_grants_stop_until_the_cgroup_is_empty(
    build, tree: CgroupTree, tmp_path, children
) -> None:
    """Nobody knows what runs there holds."""
    home = build(tree=tree)
    child = children.sleeper()
    lease = home.grant(cus=8, anchor=CGROUP)
    home.enter(lease, child.pid)
    home.sidecar_files.remove(lease.id)
    lose(home, tmp_path)
    home = build(tree=tree)
    with pytest.raises(LedgerUnavailable, match=f"does not know.*-{lease.id}.slice"):
        home.grant(cus=8)
    assert child.poll() is None
    child.kill()
    child.wait()
    home.look()
    assert home.grant(cus=8).id > lease.id


def test_a_sidecar_of_another_boot_is_no_lease(build, tree: CgroupTree, tmp_path, clock: TurnedClock) -> None:
    """Where the directory outlived a reboot."""
    home = build(tree=tree)
    home.grant(cus=8)
    lose(home, tmp_path)
    clock.reboot()
    home = build(tree=tree)
    assert (home.ledger.live(), home.sidecars.leases(), tree.existing()) == ((), frozenset(), {})
    assert home.agent.unready() is None


def test_a_sidecar_without_its_cgroup_is_no_lease(build, tree: CgroupTree, tmp_path) -> None:
    """Gone, or another under its name: path and inode count."""
    home = build(tree=tree)
    gone, other = home.grant(cus=8, anchor=CGROUP), home.grant(cus=8, anchor=CGROUP)
    for lease in (gone, other):
        tree.remove(CgroupRef(lease.cgroup, lease.anchor.inode))
    tree.create(other.id)
    lose(home, tmp_path)
    home = build(tree=tree)
    assert (home.ledger.live(), home.sidecars.leases(), tree.existing()) == ((), frozenset(), {})


def test_a_lease_that_cannot_be_put_back_stops_grants_while_it_runs(
    build, tree: CgroupTree, tmp_path, children
) -> None:
    """What it holds is held by another: a restored ledger, say. Nothing is granted, nobody is killed."""
    home = build(tree=tree)
    first, second = home.grant(cus=8, anchor=CGROUP), home.grant(cus=8, anchor=CGROUP)
    child = children.sleeper()
    home.enter(second, child.pid)
    edit(
        home,
        second.id,
        slices=[{**row, "lease": second.id} for row in home.sidecar_files.read(first.id)["slices"]],
    )
    lose(home, tmp_path)
    home = build(tree=tree)
    home.look()
    assert {lease.id for lease in home.ledger.live()} == {first.id}
    assert f"lease {second.id} runs and is lost" in home.agent.unready()
    assert child.poll() is None
    child.kill()
    child.wait()
    home.look()
    home.look()
    assert home.agent.unready() is None
    assert home.sidecars.leases() == {first.id}
    assert set(tree.existing()) == {first.id}


def test_a_lease_without_a_cgroup_is_rebuilt_for_its_process(build, tmp_path, children) -> None:
    """Its sidecar is all that tells of it; the end of its process ends it as ever."""
    house, child = build(), children.sleeper()
    lease = house.grant(user(pid=child.pid), cus=8, anchor=AnchorKind.PROCESS)
    lose(house, tmp_path)
    house = build()
    house.look()
    assert house.state(lease.id) is LeaseState.ACTIVE
    child.kill()
    child.wait()
    house.look()
    assert house.state(lease.id) is LeaseState.RELEASED
    assert house.ledger.held() == ()


def test_a_process_whose_lease_cannot_be_put_back_stops_grants(build, tmp_path, children) -> None:
    """As long as it lives, by pid and start time."""
    house, child = build(), children.sleeper()
    first = house.grant(user(), cus=8)
    second = house.grant(user(pid=child.pid), cus=8, anchor=AnchorKind.PROCESS)
    taken = [{**row, "lease": second.id} for row in house.sidecar_files.read(first.id)["slices"]]
    edit(house, second.id, slices=taken)
    lose(house, tmp_path)
    house = build()
    assert f"lease {second.id} runs and is lost" in house.agent.unready()
    child.kill()
    child.wait()
    house.look()
    assert house.agent.unready() is None
    assert house.sidecars.leases() == {first.id}


def test_a_sidecar_that_cannot_be_written_ends_no_grant(build, tree: CgroupTree, monkeypatch) -> None:
    """/run is full, say: told, and written when there is room."""
    home = build(tree=tree)

    def fail(lease: int, content: object) -> None:
        raise OSError(28, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(home.sidecar_files, "write", fail)
        lease = home.grant(cus=8)
        home.look()
        assert home.state(lease.id) is LeaseState.ACTIVE
        assert home.agent.unready() is None
    home.look()
    assert home.sidecars.leases() == {lease.id}


def test_a_restored_ledger_takes_back_what_came_after_it(build, tree: CgroupTree, tmp_path) -> None:
    """Yesterday's backup under a lease of today's."""
    home = build(tree=tree)
    old = home.grant(cus=8)
    home.die()
    copy = (tmp_path / "state" / "ledger.sqlite3").read_bytes()
    home = build(tree=tree)
    new = home.grant(cus=8)
    lose(home, tmp_path)
    (tmp_path / "state" / "ledger.sqlite3").write_bytes(copy)
    home = build(tree=tree)
    assert {lease.id for lease in home.ledger.live()} == {old.id, new.id}
    check_sound(home.ledger.held(), home)


def test_a_sidecar_that_no_grant_wrote_is_refused(build, tree: CgroupTree, tmp_path) -> None:
    """Told, and nothing comes in from it; the agent goes on, as empty as it began."""
    home = build(tree=tree)
    broken, wrong = home.grant(cus=8), home.grant(cus=8)
    edit(home, broken.id, slices=[])
    told = home.sidecar_files.read(wrong.id)
    edit(
        home, wrong.id, effects=[{**row, "evidence": '{"path": 1, "inode": "x"}'} for row in told["effects"]]
    )
    lose(home, tmp_path)
    home = build(tree=tree)
    home.look()
    assert home.ledger.leases() == ()
    assert home.grant(cus=8).id > wrong.id


def test_a_file_that_is_no_json_is_told(build, tree: CgroupTree, tmp_path) -> None:
    """Cut short, nested without end, or a link."""
    home = build(tree=tree)
    for lease, content in ((501, b"{"), (502, b"[" * 100_000), (503, b"\xff"), (504, json.dumps(1).encode())):
        home.sidecar_files.write(lease, {})
        home.sidecar_files.path(lease).write_bytes(content)
    home.sidecar_files.path(505).symlink_to("/etc/passwd")
    home.look()
    assert home.ledger.live() == ()
    assert home.agent.unready() is None
    for lease in range(501, 506):
        home.sidecar_files.remove(lease)
