"""Leases with cgroups of the kernel's and real processes in them: attach, release, crash, strangers."""

from __future__ import annotations

import os
import subprocess
import threading
from dataclasses import replace

import pytest
from service_builders import DeathError, House, admin, order_of, until, user

from nodeagent.adapters.cgroup import CgroupRef, CgroupTree
from nodeagent.domain.errors import LedgerUnavailable, NotAllowed, StaleLease, UnknownThing
from nodeagent.domain.lease import AnchorKind, HolderKind, Lease, LeaseState, SliceState
from nodeagent.domain.records import EffectState
from nodeagent.service.reconcile import Periods

pytestmark = pytest.mark.cgroup2
CGROUP = AnchorKind.CGROUP


@pytest.fixture
def home(build, tree: CgroupTree) -> House:
    """An agent with a cgroup subtree of its own, patient with dying processes."""
    return build(tree=tree, timeout=20)


def procs(house: House, lease: Lease) -> tuple[int, ...]:
    """Who is in the lease's cgroup."""
    ref = house.tree.resolve(lease.cgroup)
    assert ref is not None
    with house.tree.open(ref) as cgroup:
        return cgroup.procs()


def enter(house: House, lease: Lease, pid: int) -> None:
    """Put a process of the test into the lease's cgroup, as the kernel allows root to."""
    with house.tree.open(house.tree.resolve(lease.cgroup)) as cgroup:
        cgroup.move(pid)


def test_a_leases_cgroup_is_there_before_the_answer(home: House) -> None:
    """Made, and named by the lease's id; path and inode are in the journal and in the anchor."""
    lease = home.grant(cus=8, anchor=CGROUP)
    assert lease.cgroup is not None
    assert lease.cgroup.endswith(f"-{lease.id}.slice")
    ref = home.tree.resolve(lease.cgroup)
    assert (lease.anchor.cgroup, lease.anchor.inode) == (ref.path, ref.inode)
    assert {record.state for record in home.ledger.effects(lease.id)} == {EffectState.VERIFIED}


def test_attach_moves_the_peer_and_arms_the_anchor(home: House, children) -> None:
    """The process that connected, and no other, is in the cgroup; the lease lives by it from then on."""
    caller = children.peer(administrator=True)
    lease = home.grant(caller, cus=8, anchor=CGROUP)
    attached = home.agent.attach(caller, lease.id)
    assert procs(home, lease) == (caller.pid,)
    assert attached.anchor.armed
    assert attached.anchor.deadline_ns is None
    assert home.kinds(lease) == ["granted", "attached"]


def test_attaching_again_changes_nothing(home: House, children) -> None:
    """A process that is in its lease already stays there."""
    caller = children.peer(administrator=True)
    lease = home.grant(caller, cus=8, anchor=CGROUP)
    assert home.agent.attach(caller, lease.id) == home.agent.attach(caller, lease.id)
    assert procs(home, lease) == (caller.pid,)


@pytest.mark.root
def test_a_user_attaches_to_its_own_lease_only(home: House, children) -> None:
    """Another user's attach is refused and moves nobody; the owner's own process goes in."""
    owner, other = children.peer(1000), children.peer(1001)
    lease = home.grant(owner, cus=8, anchor=CGROUP)
    with pytest.raises(NotAllowed):
        home.agent.attach(other, lease.id)
    assert procs(home, lease) == ()
    home.agent.attach(owner, lease.id)
    assert procs(home, lease) == (owner.pid,)


def test_a_containers_root_attaches_nowhere(home: House, children) -> None:
    """uid 0 that is no administrator owns nothing, not even root's leases."""
    caller = children.peer()
    lease = home.grant(admin(), cus=8, anchor=CGROUP)
    with pytest.raises(NotAllowed):
        home.agent.attach(replace(caller, uid=0, administrator=False), lease.id)
    assert procs(home, lease) == ()


def test_attach_needs_an_active_lease(home: House, children) -> None:
    """NotAllowed while it is queued, StaleLease once it ended, UnknownThing where it never was."""
    caller = children.peer(administrator=True)
    blocker = home.grant(caller, count=2, anchor=AnchorKind.TTL)
    queued = home.grant(caller, cus=8, anchor=CGROUP, wait=60)
    with pytest.raises(NotAllowed, match="still queued"):
        home.agent.attach(caller, queued.id)
    home.release(blocker)
    with pytest.raises(StaleLease):
        home.agent.attach(caller, blocker.id)
    with pytest.raises(UnknownThing):
        home.agent.attach(caller, 4711)


def test_attach_of_a_dead_peer_moves_nobody(home: House, children) -> None:
    """Whoever has the pid now is not the one that connected."""
    caller = children.peer(administrator=True)
    lease = home.grant(admin(), cus=8, anchor=CGROUP)
    children.end(caller.pid)
    with pytest.raises(NotAllowed):
        home.agent.attach(caller, lease.id)
    assert procs(home, lease) == ()


def test_a_process_that_uses_the_gpu_already_may_not_enter(home: House, children) -> None:
    """What it holds is charged elsewhere."""
    caller = children.peer(administrator=True)
    lease = home.grant(caller, cus=8, anchor=CGROUP)
    (home.root / "sys/class/kfd/kfd/proc" / str(caller.pid)).mkdir(parents=True)
    with pytest.raises(NotAllowed, match="uses the GPU already"):
        home.agent.attach(caller, lease.id)
    assert procs(home, lease) == ()


def test_release_kills_and_frees_only_then(home: House, children) -> None:
    """The lease's processes are gone, children too, before its slice is free and its cgroup away."""
    caller, child = children.peer(administrator=True), children.sleeper()
    lease = home.grant(caller, cus=64, anchor=CGROUP)
    home.agent.attach(caller, lease.id)
    enter(home, lease, child.pid)
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
    enter(home, lease, inside.pid)
    enter(home, neighbour, other.pid)
    home.release(lease)
    inside.wait(20)
    assert (other.poll(), free.poll()) == (None, None)
    assert procs(home, neighbour) == (other.pid,)


def test_a_slice_whose_process_cannot_die_is_quarantined(
    build, tree: CgroupTree, children, monkeypatch
) -> None:
    """Populated past the time-out: the lease ends FAILED, its slice waits, another one is granted."""
    home = build(tree=tree, timeout=0.1)
    child = children.sleeper()
    lease = home.grant(cus=32, anchor=CGROUP)
    enter(home, lease, child.pid)
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
    until(lambda: not procs(home, lease))
    home.tree.remove(CgroupRef(lease.cgroup, lease.anchor.inode))
    home.look()
    assert home.ledger.lease(lease.id).reason == "its cgroup is gone"
    assert home.ledger.held() == ()


def test_attach_after_a_recreated_cgroup_is_stale(home: House, children) -> None:
    """Another cgroup under the same name is not the lease's: threat 15."""
    caller = children.peer(administrator=True)
    lease = home.grant(caller, cus=8, anchor=CGROUP)
    home.tree.remove(CgroupRef(lease.cgroup, lease.anchor.inode))
    home.tree.create(lease.id)
    with pytest.raises(StaleLease, match="gone"):
        home.agent.attach(caller, lease.id)
    assert procs(home, lease) == ()


def test_release_spares_a_recreated_cgroup(home: House, children) -> None:
    """A late release kills nobody in a cgroup that only has the old one's name: threat 15."""
    child = children.sleeper()
    lease = home.grant(cus=8, anchor=CGROUP)
    home.tree.remove(CgroupRef(lease.cgroup, lease.anchor.inode))
    home.tree.create(lease.id)
    enter(home, lease, child.pid)
    assert home.release(lease).state is LeaseState.RELEASED
    assert child.poll() is None


def test_attach_and_release_at_once_leave_nobody_behind(home: House, children) -> None:
    """Whoever wins, in the end the peer is dead or outside, and the slice is free."""
    for _ in range(6):
        caller = children.peer(administrator=True)
        lease = home.grant(caller, cus=8, anchor=CGROUP)
        said: list[object] = []

        def attach(caller=caller, lease=lease, said=said) -> None:
            try:
                said.append(home.agent.attach(caller, lease.id))
            except StaleLease as stale:
                said.append(stale)

        thread = threading.Thread(target=attach)
        thread.start()
        assert home.release(lease, caller).state is LeaseState.RELEASED
        thread.join(20)
        assert len(said) == 1
        assert home.tree.resolve(lease.cgroup) is None
        gone = home.tree.cgroup_of(caller.pid) is None or not caller_lives(caller.pid)
        assert gone or isinstance(said[0], StaleLease)
    assert home.ledger.held() == ()


def caller_lives(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


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
    enter(home, lease, child.pid)
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
    enter(home, lease, child.pid)
    home.die()
    home = build()
    assert home.release(lease).state is LeaseState.FAILED
    assert child.poll() is None
    home.die()
    home = build(tree=tree, timeout=20)
    until(lambda: not home.ledger.held() or home.agent.clear_lease(admin(), lease.id) is None)
    assert child.wait(20) == -9


def test_a_process_that_attached_without_cgroups_keeps_the_slice(build, tree: CgroupTree, children) -> None:
    """The agent had no right to cgroups when it came; with it again, an empty cgroup is no proof."""
    home = build(tree=tree)
    lease = home.grant(cus=8)
    home.die()
    home = build()
    caller = children.peer(administrator=True)
    home.agent.attach(caller, lease.id)
    home.die()
    home = build(tree=tree)
    assert home.release(lease).state is LeaseState.FAILED
    children.end(caller.pid)
    home.agent.clear_lease(admin(), lease.id)
    assert home.ledger.held() == ()


def job(tree: CgroupTree, pid: int) -> str:
    """The path of a new cgroup, as a job's or container's, with *pid* in it."""
    path = f"{tree.instance}/job{pid}"
    directory = tree.mount / path[1:]
    directory.mkdir()
    (directory / "cgroup.procs").write_text(str(pid))
    return path


def test_a_lease_taken_in_a_job_nests_below_it(home: House, children) -> None:
    """The job's limits still bind its processes; release ends the lease's alone: threat 9."""
    caller, sibling = children.peer(administrator=True), children.sleeper()
    path = job(home.tree, caller.pid)
    (home.tree.mount / path[1:] / "cgroup.procs").write_text(str(sibling.pid))
    lease = home.grant(caller, cus=8, anchor=CGROUP)
    assert lease.cgroup.startswith(f"{path}/")
    home.agent.attach(caller, lease.id)
    assert procs(home, lease) == (caller.pid,)
    assert home.release(lease, caller).state is LeaseState.RELEASED
    assert sibling.poll() is None
    assert home.tree.cgroup_of(sibling.pid) == path


def test_nobody_leaves_its_job_by_attach(home: House, children) -> None:
    """A lease outside the peer's job does not take it in: threat 9."""
    caller = children.peer(administrator=True)
    lease = home.grant(admin(), cus=8, anchor=CGROUP)
    path = job(home.tree, caller.pid)
    with pytest.raises(NotAllowed, match="confined"):
        home.agent.attach(caller, lease.id)
    assert home.tree.cgroup_of(caller.pid) == path


def test_a_lease_whose_job_ended_meanwhile_is_not_granted(home: House, children) -> None:
    """The cgroup to nest below is gone between the booking and the act: a fault, and nothing is held."""
    caller, blocker = children.peer(administrator=True), home.grant(count=2)
    path = job(home.tree, caller.pid)
    lease = home.grant(caller, cus=8, anchor=CGROUP, wait=600)
    (home.tree.mount / home.tree.instance[1:] / "other").mkdir()
    (home.tree.mount / home.tree.instance[1:] / "other/cgroup.procs").write_text(str(caller.pid))
    (home.tree.mount / path[1:]).rmdir()
    home.release(blocker)
    home.look()
    assert home.state(lease.id) is LeaseState.RELEASED
    assert "not prepared" in (home.ledger.lease(lease.id).reason or "")
    assert home.ledger.held() == ()


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
    enter(home, lease, storm.pid)
    os.write(go, b"\n")
    until(lambda: len(procs(home, lease)) > 5)
    assert home.release(lease).state is LeaseState.RELEASED
    assert storm.wait(20) == -9
    os.close(gate)
    os.close(go)
    assert home.tree.existing() == {}
