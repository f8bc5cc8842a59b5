"""Attach to leases with cgroups of the kernel's: who enters, and what it must not leave."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

import pytest
from service_builders import House, admin

from nodeagent.adapters.cgroup import CgroupRef, CgroupTree
from nodeagent.domain.errors import NotAllowed, StaleLease, UnknownThing
from nodeagent.domain.lease import AnchorKind, LeaseState

pytestmark = pytest.mark.cgroup2
CGROUP = AnchorKind.CGROUP


def test_attach_moves_the_peer_and_arms_the_anchor(home: House, children) -> None:
    """The process that connected, and no other, is in the cgroup; the lease lives by it from then on."""
    caller = children.peer(administrator=True)
    lease = home.grant(caller, cus=8, anchor=CGROUP)
    attached = home.agent.attach(caller, lease.id)
    assert home.procs(lease) == (caller.pid,)
    assert attached.anchor.armed
    assert attached.anchor.deadline_ns is None
    assert home.kinds(lease) == ["granted", "attached"]


def test_attaching_again_changes_nothing(home: House, children) -> None:
    """A process that is in its lease already stays there."""
    caller = children.peer(administrator=True)
    lease = home.grant(caller, cus=8, anchor=CGROUP)
    assert home.agent.attach(caller, lease.id) == home.agent.attach(caller, lease.id)
    assert home.procs(lease) == (caller.pid,)


@pytest.mark.root
def test_a_user_attaches_to_its_own_lease_only(home: House, children) -> None:
    """Another user's attach is refused and moves nobody; the owner's own process goes in."""
    owner, other = children.peer(1000), children.peer(1001)
    lease = home.grant(owner, cus=8, anchor=CGROUP)
    with pytest.raises(NotAllowed):
        home.agent.attach(other, lease.id)
    assert home.procs(lease) == ()
    home.agent.attach(owner, lease.id)
    assert home.procs(lease) == (owner.pid,)


def test_a_containers_root_attaches_nowhere(home: House, children) -> None:
    """uid 0 that is no administrator owns nothing, not even root's leases."""
    caller = children.peer()
    lease = home.grant(admin(), cus=8, anchor=CGROUP)
    with pytest.raises(NotAllowed):
        home.agent.attach(replace(caller, uid=0, administrator=False), lease.id)
    assert home.procs(lease) == ()


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
    assert home.procs(lease) == ()


def test_a_process_that_uses_the_gpu_already_may_not_enter(home: House, children) -> None:
    """What it holds is charged elsewhere."""
    caller = children.peer(administrator=True)
    lease = home.grant(caller, cus=8, anchor=CGROUP)
    (home.root / "sys/class/kfd/kfd/proc" / str(caller.pid)).mkdir(parents=True)
    with pytest.raises(NotAllowed, match="uses the GPU already"):
        home.agent.attach(caller, lease.id)
    assert home.procs(lease) == ()


def test_attach_after_a_recreated_cgroup_is_stale(home: House, children) -> None:
    """Another cgroup under the same name is not the lease's: threat 15."""
    caller = children.peer(administrator=True)
    lease = home.grant(caller, cus=8, anchor=CGROUP)
    home.tree.remove(CgroupRef(lease.cgroup, lease.anchor.inode))
    home.tree.create(lease.id)
    with pytest.raises(StaleLease, match="gone"):
        home.agent.attach(caller, lease.id)
    assert home.procs(lease) == ()


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
    assert home.procs(lease) == (caller.pid,)
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
