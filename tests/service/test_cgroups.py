"""Leases with cgroups of the kernel's and real processes in them: release, crash, strangers."""

from __future__ import annotations

import os
import subprocess
import threading

import pytest
from service_builders import House, admin, order_of, until, user
from service_world import DeathError

from nodeagent.adapters.cgroup import CgroupRef, CgroupTree
from nodeagent.domain.errors import LedgerUnavailable, NotAllowed
from nodeagent.domain.lease import AnchorKind, HolderKind, LeaseState, SliceState
from nodeagent.domain.records import EffectState
from nodeagent.service.cgroup_effects import OCCUPANTS, OccupantsEffect
from nodeagent.service.effects import Pending
from nodeagent.service.reconcile import Periods

pytestmark = pytest.mark.cgroup2
CGROUP = AnchorKind.CGROUP


def test_a_leases_cgroup_is_there_before_the_answer(home: House) -> None:
    """Made, and named by the lease's id; path and inode are in the journal and in the anchor."""
    lease = home.grant(cus=8, anchor=CGROUP)
    assert lease.cgroup is not None
    assert lease.cgroup.endswith(f"-{lease.id}.slice")
    ref = home.tree.resolve(lease.cgroup)
    assert (lease.anchor.cgroup, lease.anchor.inode) == (ref.path, ref.inode)
    assert {record.state for record in home.ledger.effects(lease.id)} == {EffectState.VERIFIED}


def test_release_kills_and_frees_only_then(home: House, children) -> None:
    """The lease's processes are gone, children too, before its slice is free and its cgroup away."""
    caller, child = children.peer(administrator=True), children.sleeper()
    lease = home.grant(caller, cus=64, anchor=CGROUP)
    home.agent.attach(caller, lease.id)
    home.enter(lease, child.pid)
    released = home.release(lease, caller)
    assert released.state is LeaseState.RELEASED
    assert child.wait(20) == -9
    assert home.ledger.held() == ()
    assert home.tree.resolve(lease.cgroup) is None
    assert {record.state for record in home.ledger.effects(lease.id)} == {EffectState.UNDONE}


def test_a_release_signals_nobody_outside_the_lease(home: House, children) -> None:
    """Another lease's process, and one outside all leases, run on."""
    inside, other, free = (children.sleeper() for _ in range(3))
    lease, neighbour = home.grant(cus=8, anchor=CGROUP), home.grant(cus=8, anchor=CGROUP)
    home.enter(lease, inside.pid)
    home.enter(neighbour, other.pid)
    home.release(lease)
    inside.wait(20)
    assert (other.poll(), free.poll()) == (None, None)
    assert home.procs(neighbour) == (other.pid,)


def test_a_slice_whose_process_cannot_die_is_quarantined(
    build, tree: CgroupTree, children, monkeypatch
) -> None:
    """Populated past the time-out: the lease ends FAILED, its slice waits, another one is granted."""
    home = build(tree=tree, timeout=0.1)
    child = children.sleeper()
    lease = home.grant(cus=32, anchor=CGROUP)
    home.enter(lease, child.pid)
    with monkeypatch.context() as patch:
        patch.setattr("nodeagent.adapters.cgroup_directory.OpenCgroup.kill", lambda self: None)
        ended = home.release(lease)
        assert ended.state is LeaseState.FAILED
        assert str(child.pid) in (ended.reason or "")
        assert [held.state for held in home.ledger.held()] == [SliceState.QUARANTINED]
        assert home.grant(cus=8, anchor=CGROUP)
        home.look()
        assert home.agent.unready() is None
    home.agent.clear_lease(admin(), lease.id)
    assert home.ledger.quarantined() == ()
    assert child.wait(20) == -9


def test_an_emptied_cgroup_ends_its_lease(home: House, children) -> None:
    """Armed by attach, the lease is reaped when the last process has left; not before anyone entered."""
    caller = children.peer(administrator=True)
    lease = home.grant(admin(), cus=8, anchor=CGROUP)
    home.look()
    assert home.state(lease.id) is LeaseState.ACTIVE
    home.agent.attach(caller, lease.id)
    home.look()
    assert home.state(lease.id) is LeaseState.ACTIVE
    children.end(caller.pid)
    home.look()
    assert home.ledger.lease(lease.id).reason == "its cgroup is empty"
    assert home.kinds(lease) == ["granted", "attached", "reaped", "released"]


def test_a_removed_cgroup_ends_its_lease(home: House, children) -> None:
    """Gone behind the agent's back: as empty as can be."""
    caller = children.peer(administrator=True)
    lease = home.grant(admin(), cus=8, anchor=CGROUP)
    home.agent.attach(caller, lease.id)
    children.end(caller.pid)
    until(lambda: not home.procs(lease))
    home.tree.remove(CgroupRef(lease.cgroup, lease.anchor.inode))
    home.look()
    assert home.ledger.lease(lease.id).reason == "its cgroup is gone"
    assert home.ledger.held() == ()


def test_release_spares_a_recreated_cgroup(home: House, children) -> None:
    """A late release kills nobody in a cgroup that only has the old one's name: threat 15."""
    child = children.sleeper()
    lease = home.grant(cus=8, anchor=CGROUP)
    home.tree.remove(CgroupRef(lease.cgroup, lease.anchor.inode))
    home.tree.create(lease.id)
    home.enter(lease, child.pid)
    assert home.release(lease).state is LeaseState.RELEASED
    assert child.poll() is None


@pytest.mark.parametrize("point", ["apply", "verify"])
def test_a_grant_cut_short_is_finished_with_the_same_cgroup(
    build, tree: CgroupTree, effect, children, point: str
) -> None:
    """Killed after the cgroup was made: the next agent finds it, one cgroup a lease, and the lease works."""
    home = build(tree=tree, effect=effect, timeout=20)
    effect.script = {point: [DeathError()]}
    with pytest.raises(DeathError):
        home.agent.grant(admin(), order_of(cus=8, anchor=CGROUP, request_id="a"))
    home.die()
    home = build(tree=tree, effect=effect, timeout=20)
    (lease,) = home.ledger.live()
    assert lease.state is LeaseState.ACTIVE
    assert set(tree.existing()) == {lease.id}
    caller = children.peer(administrator=True)
    home.agent.attach(caller, lease.id)
    assert home.release(lease).state is LeaseState.RELEASED
    assert tree.existing() == {}


def test_a_release_cut_short_is_finished(build, tree: CgroupTree, children, monkeypatch) -> None:
    """Killed between the kill and the freeing: the next agent sees the cgroup empty and frees."""
    home = build(tree=tree, timeout=20)
    child = children.sleeper()
    lease = home.grant(cus=8, anchor=CGROUP)
    home.enter(lease, child.pid)
    with monkeypatch.context() as patch:
        died = threading.Event()

        def die(_: object) -> None:
            died.set()
            raise DeathError

        patch.setattr(home.journal, "_pause", die)
        home.agent.release(admin(), lease.id, 0)
        assert died.wait(20)
    assert home.state(lease.id) is LeaseState.RELEASING
    home.die()
    home = build(tree=tree, timeout=20)
    home.settle()
    assert home.state(lease.id) is LeaseState.RELEASED
    assert tree.existing() == {}


def test_ids_start_above_existing_cgroups(build, tree: CgroupTree) -> None:
    """With database and mark gone, a cgroup's name still fences off its id: no lease has it again."""
    tree.create(123_456)
    home = build(tree=tree)
    assert home.grant(cus=8).id > 123_456


def test_a_stranger_stops_grants_and_is_not_killed(build, tree: CgroupTree, children) -> None:
    """A populated cgroup of the instance without a lease: no grants, with the reason, until it is empty."""
    home = build(tree=tree, timeout=20)
    running = home.grant(cus=8)
    child = children.sleeper()
    with tree.open(tree.create(900_000)) as cgroup:
        cgroup.move(child.pid)
    home.look()
    with pytest.raises(LedgerUnavailable, match=r"does not know.*900000"):
        home.grant(cus=8)
    assert not home.agent.node().ready
    assert child.poll() is None
    assert home.agent.renew(admin(), running.id).state is LeaseState.ACTIVE
    assert home.release(running).state is LeaseState.RELEASED
    child.kill()
    child.wait()
    home.look()
    assert home.grant(cus=8)


def test_a_stranger_stops_what_waits_and_what_was_being_prepared(
    build, tree: CgroupTree, effect, children
) -> None:
    """As after the restore of a backup: what was queued or half granted then may be the stranger's by now."""
    home = build(tree=tree, effect=effect, timeout=20)
    effect.script = {"apply": [DeathError()]}
    with pytest.raises(DeathError):
        home.agent.grant(admin(), order_of(cus=64))
    neighbour, waiting = home.grant(cus=64), home.grant(cus=64, wait=3600)
    half = next(one for one in home.ledger.live() if one.state is LeaseState.PREPARING)
    home.die()
    child = children.sleeper()
    with tree.open(tree.create(900_000)) as cgroup:
        cgroup.move(child.pid)
    home = build(tree=tree, effect=effect, timeout=20)
    home.release(neighbour)
    home.look()
    assert (home.state(half.id), home.state(waiting.id)) == (LeaseState.PREPARING, LeaseState.QUEUED)
    child.kill()
    child.wait()
    home.look()
    assert (home.state(half.id), home.state(waiting.id)) == (LeaseState.ACTIVE, LeaseState.ACTIVE)


def test_whoever_enters_after_the_proof_runs_no_line(home: House, tree: CgroupTree, children) -> None:
    """A supervisor outlives its agent, and may start its command late: that is frozen, and killed."""
    lease, child = home.grant(cus=8, anchor=CGROUP), children.sleeper()
    (record,) = (one for one in home.ledger.effects(lease.id) if one.kind == OCCUPANTS)
    proved = OccupantsEffect(tree).undo(record.arguments, record.evidence or {})
    assert proved == {"populated": False}
    home.enter(lease, child.pid)
    with tree.open(tree.resolve(lease.cgroup)) as cgroup:
        until(lambda: "frozen 1" in (cgroup.read("cgroup.events") or ""))
    assert home.release(lease).state is LeaseState.RELEASED
    assert child.wait(20) == -9


def test_occupants_go_also_where_the_journal_knows_no_cgroup(home: House, tree: CgroupTree, children) -> None:
    """As in a backup from before the lease was active: the cgroup is found by its name, and emptied."""
    lease, child = home.grant(cus=8, anchor=CGROUP), children.sleeper()
    home.enter(lease, child.pid)
    (record,) = (one for one in home.ledger.effects(lease.id) if one.kind == OCCUPANTS)
    assert isinstance(OccupantsEffect(tree).undo(record.arguments, {}), Pending)
    assert child.wait(20) == -9


def test_an_empty_cgroup_without_a_lease_stops_nothing(build, tree: CgroupTree) -> None:
    """Left by a crash before the booking was undone, say: nobody runs there."""
    home = build(tree=tree)
    tree.create(900_000)
    home.look()
    assert home.grant(cus=8)


def test_a_look_alike_elsewhere_is_no_stranger(build, tree: CgroupTree, children) -> None:
    """A cgroup with a lease's name outside the subtree stops nothing: threat 14."""
    home = build(tree=tree)
    lease = home.grant(cus=8, anchor=CGROUP)
    inner = tree.mount / lease.cgroup[1:] / f"{tree.instance[1:].removesuffix('.slice')}-77.slice"
    inner.mkdir()
    child = children.sleeper()
    (inner / "cgroup.procs").write_text(str(child.pid))
    home.look()
    assert home.agent.unready() is None


def test_the_agent_without_its_cgroups_keeps_what_it_cannot_prove(build, tree: CgroupTree, children) -> None:
    """Started without the right to its cgroups, it quarantines their slices; with it again, it frees them."""
    home = build(tree=tree)
    child = children.sleeper()
    lease = home.grant(cus=8, anchor=AnchorKind.TTL)
    home.enter(lease, child.pid)
    home.die()
    home = build()
    assert home.release(lease).state is LeaseState.FAILED
    assert child.poll() is None
    home.die()
    home = build(tree=tree, timeout=20)
    until(lambda: not home.ledger.held() or home.agent.clear_lease(admin(), lease.id) is None)
    assert child.wait(20) == -9


def test_an_adopted_cgroup_is_watched_and_never_killed(home: House, children) -> None:
    """Its lease ends when it is empty; released before, the slice waits and its processes run on."""
    child = children.sleeper()
    path = home.tree.mount / home.tree.instance[1:] / "job"
    path.mkdir()
    (path / "cgroup.procs").write_text(str(child.pid))
    wish = {
        "cus": 8,
        "anchor": CGROUP,
        "cgroup": f"{home.tree.instance}/job",
        "holder": (HolderKind.SLURM, "7"),
    }
    watched, released = home.grant(**wish), home.grant(**wish)
    home.releaser._timeout = 0.1
    assert home.release(released).state is LeaseState.FAILED
    assert child.poll() is None
    child.kill()
    child.wait()
    home.look()
    assert home.state(watched.id) is LeaseState.RELEASED
    home.agent.clear_lease(admin(), released.id)
    assert home.ledger.held() == ()
    assert path.is_dir()


def test_an_adopted_cgroup_of_an_older_boot_is_another(build, tree: CgroupTree, clock, children) -> None:
    """Path and inode may be those of a new service after a reboot: it does not keep the old lease's slice."""
    home = build(tree=tree)
    child = children.sleeper()
    path = tree.mount / tree.instance[1:] / "service"
    path.mkdir()
    (path / "cgroup.procs").write_text(str(child.pid))
    home.grant(cus=8, anchor=CGROUP, cgroup=f"{tree.instance}/service", holder=(HolderKind.SLURM, "7"))
    home.die()
    clock.reboot()
    home = build(tree=tree)
    home.settle()
    assert home.ledger.held() == ()
    assert child.poll() is None


def test_only_administrators_adopt_a_cgroup(home: House) -> None:
    """A user might name another's."""
    with pytest.raises(NotAllowed, match="administrator"):
        home.agent.grant(user(), order_of(cus=8, anchor=CGROUP, cgroup=home.tree.instance))


def test_the_thread_reaps_an_emptied_cgroup(build, tree: CgroupTree, children) -> None:
    """The kernel's event on the cgroup, not a period, wakes the reconciler."""
    home = build(tree=tree, timeout=20, periods=Periods(look=600, pause=0))
    home.changes.listen(home.reconciler.wake)
    home.reconciler.start()
    caller = children.peer(administrator=True)
    lease = home.grant(caller, cus=8, anchor=CGROUP)
    home.agent.attach(caller, lease.id)
    armed = home.ledger.lease(lease.id).anchor
    until(lambda: home.reconciler._vigil._watched.get(lease.id) == armed)
    children.end(caller.pid)
    until(lambda: home.state(lease.id) is LeaseState.RELEASED)


def test_a_fork_storm_ends_with_its_lease(home: House, children) -> None:
    """A process that forks all the time is killed whole."""
    lease = home.grant(cus=8, anchor=CGROUP)
    gate, go = os.pipe()
    storm = subprocess.Popen(
        ["sh", "-c", "read x; while :; do sleep 600 & sleep 0.01; done"], stdin=gate, start_new_session=True
    )
    children.started.append(storm)
    home.enter(lease, storm.pid)
    os.write(go, b"\n")
    until(lambda: len(home.procs(lease)) > 5)
    assert home.release(lease).state is LeaseState.RELEASED
    assert storm.wait(20) == -9
    os.close(gate)
    os.close(go)
    assert home.tree.existing() == {}
