"""Moving a peer into a lease's cgroup: itself only, as who it was, and out of nothing that confines it."""

from __future__ import annotations

import os
import shutil
import socket
from dataclasses import replace

import pytest

from nodeagent.adapters.attach import attach
from nodeagent.adapters.peer import peer_of
from nodeagent.adapters.processes import start_time_of, uids_of
from nodeagent.domain.errors import NotAllowed

pytestmark = [pytest.mark.cgroup2, pytest.mark.root]
USER = 54_321


def no_gpu(pid: int) -> bool:
    return False


def become_root(connection: socket.socket) -> None:
    """What a setuid program is to the kernel: the effective uid changes, the process stays."""
    connection.recv(1)
    os.setresuid(USER, 0, 0)
    connection.send(b"root")
    connection.recv(1)


def test_a_peer_is_moved(tree, lease_cgroup, children):
    """Attach moves the process that connected, and says when it started and where it was."""
    pid, connection = children.connect(uid=USER)
    before = tree.cgroup_of(pid)
    with peer_of(connection) as peer:
        moved = attach(tree, lease_cgroup, peer, gpu_in_use=no_gpu)
    assert (moved.pid, moved.start_time, moved.previous) == (pid, start_time_of(pid), before)
    assert lease_cgroup.procs() == (pid,)


def test_attaching_again_changes_nothing(tree, lease_cgroup, children):
    """A peer that is inside already stays, also once it uses the GPU."""
    pid, connection = children.connect(uid=USER)
    with peer_of(connection) as peer:
        first = attach(tree, lease_cgroup, peer, gpu_in_use=no_gpu)
        again = attach(tree, lease_cgroup, peer, gpu_in_use=lambda pid: True)
    assert again.start_time == first.start_time
    assert lease_cgroup.procs() == (pid,)


def test_a_peer_that_became_setuid_is_refused(tree, lease_cgroup, children):
    """threat 8: connect, then execute a setuid program: root's process is not moved."""
    _, connection = children.connect(become_root, uid=USER, saved_uid=0)
    with peer_of(connection) as peer:
        connection.send(b"!")
        assert connection.recv(4) == b"root"
        with pytest.raises(NotAllowed, match="setuid"):
            attach(tree, lease_cgroup, peer, gpu_in_use=no_gpu)
    assert lease_cgroup.procs() == ()


def test_a_peer_that_could_become_root_again_is_refused(tree, lease_cgroup, children):
    """threat 8: all four uids count, the saved one, too."""
    _, connection = children.connect(become_root, uid=USER, saved_uid=0)
    with peer_of(connection) as peer, pytest.raises(NotAllowed, match="setuid"):
        attach(tree, lease_cgroup, peer, gpu_in_use=no_gpu)


def test_a_setuid_program_during_the_move_is_moved_back(tree, lease_cgroup, children, tmp_path):
    """threat 8: the check after the write finds the changed uids and undoes the move."""
    if os.statvfs(tmp_path).f_flag & os.ST_NOSUID:
        pytest.skip("the temporary directory is mounted nosuid")
    program = tmp_path / "sleep"
    shutil.copy(shutil.which("sleep") or "", program)
    program.chmod(0o4755)
    descriptor = os.open(program, os.O_RDONLY)

    def execute_setuid(connection: socket.socket) -> None:
        connection.recv(1)
        os.execve(descriptor, ["sleep", "60"], {})

    pid, connection = children.connect(execute_setuid, uid=USER)
    os.close(descriptor)
    before = tree.cgroup_of(pid)

    def becomes_root_now(pid: int) -> bool:
        connection.send(b"!")
        while (uids_of(pid) or ())[1] != 0:
            pass
        return False

    with peer_of(connection) as peer, pytest.raises(NotAllowed, match="setuid"):
        attach(tree, lease_cgroup, peer, gpu_in_use=becomes_root_now)
    assert tree.cgroup_of(pid) == before
    assert lease_cgroup.procs() == ()


def test_a_peer_that_opens_the_gpu_during_the_move_is_moved_back(tree, lease_cgroup, children):
    """GPU use is looked for again after the write."""
    pid, connection = children.connect(uid=USER)
    before = tree.cgroup_of(pid)
    looks: list[int] = []

    def opened_meanwhile(pid: int) -> bool:
        looks.append(pid)
        return len(looks) > 1

    with peer_of(connection) as peer, pytest.raises(NotAllowed, match="uses the GPU"):
        attach(tree, lease_cgroup, peer, gpu_in_use=opened_meanwhile)
    assert tree.cgroup_of(pid) == before
    assert lease_cgroup.procs() == ()


def test_a_recycled_pid_is_moved_back(tree, lease_cgroup, children):
    """threat 8: a peer that dies before the write leaves its pid to a stranger, who is put back."""
    dead, connection = children.connect(uid=USER)
    stranger, _ = children.connect(uid=USER)
    before = tree.cgroup_of(stranger)

    def dies_now(pid: int) -> bool:
        if dead in children.started:
            children.started[dead] = None
            children.end(dead)
        return False

    with connection, peer_of(connection) as peer:
        recycled = replace(peer, pid=stranger)
        with pytest.raises(NotAllowed, match="ended"):
            attach(tree, lease_cgroup, recycled, gpu_in_use=dies_now)
    assert tree.cgroup_of(stranger) == before
    assert lease_cgroup.procs() == ()


def test_a_dead_peer_is_refused(tree, lease_cgroup, children):
    """A connection that outlived its process moves nobody."""
    pid, connection = children.connect(uid=USER)
    with connection.dup() as kept, peer_of(kept) as peer:
        children.end(pid)
        with pytest.raises(NotAllowed):
            attach(tree, lease_cgroup, peer, gpu_in_use=no_gpu)


def test_a_peer_that_uses_the_gpu_is_refused(tree, lease_cgroup, children):
    """What a process already holds is charged elsewhere, so it may not come in."""
    _, connection = children.connect(uid=USER)
    with peer_of(connection) as peer, pytest.raises(NotAllowed, match="adopt"):
        attach(tree, lease_cgroup, peer, gpu_in_use=lambda pid: True)
    assert lease_cgroup.procs() == ()


@pytest.mark.parametrize("pid", [0, 1, None])
def test_neither_init_nor_the_agent_is_moved(tree, lease_cgroup, children, pid):
    """Pid 1, an invisible pid and the agent itself stay where they are."""
    _, connection = children.connect()
    with peer_of(connection) as peer, pytest.raises(NotAllowed):
        other = replace(peer, pid=os.getpid() if pid is None else pid)
        attach(tree, lease_cgroup, other, gpu_in_use=no_gpu)
    assert lease_cgroup.procs() == ()


def test_a_confined_peer_is_not_taken_out(tree, lease_cgroup, children):
    """threat 9: a peer in a job's cgroup may enter a lease below it only."""
    pid, connection = children.connect(uid=USER)
    job = tree.create(42)
    with tree.open(job) as cgroup:
        cgroup.move(pid)
    with peer_of(connection) as peer:
        with pytest.raises(NotAllowed, match="confined"):
            attach(tree, lease_cgroup, peer, gpu_in_use=no_gpu)
        assert tree.cgroup_of(pid) == job.path
        with tree.open(tree.create(43, job.path)) as nested:
            attach(tree, nested, peer, gpu_in_use=no_gpu)
            assert nested.procs() == (pid,)


def test_a_limited_peer_is_not_set_free(plain, children):
    """threat 9: a peer under a limit may not enter a cgroup without it, and the limit is named."""
    _, connection = children.connect(uid=USER)
    plain.cgroup("/user.slice/session", pids__max="20\n", memory__max="104857600\n")
    lease = plain.cgroup("/gpulease.slice/gpulease-7.slice", pids__max="max\n", memory__max="104857600\n")
    plain.tree.cgroup_of = lambda pid: "/user.slice/session"
    refused = pytest.raises(NotAllowed, match=r"loosen the peer's pids\.max$")
    with plain.tree.open(lease) as cgroup, peer_of(connection) as peer, refused:
        attach(plain.tree, cgroup, peer, gpu_in_use=no_gpu)
