"""Who is at the other end of a socket, and who of them may administer."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import subprocess
from pathlib import Path

import pytest

from nodeagent.adapters import processes
from nodeagent.adapters.peer import Peer, administrator, peer_of

USER = 54_321
GROUP = 54_400
CLONE_NEWUSER = 0x10000000


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(params=[True, False], ids=["SO_PEERPIDFD", "before Linux 6.5"])
def look(request):
    """`peer_of` as on new and on old kernels."""

    def peer(connection: socket.socket) -> Peer:
        return peer_of(connection, kernel_gives_pidfd=request.param)

    return peer


def test_a_peer_is_told_by_the_kernel(children, look):
    """Pid, uid, gid and a living pidfd are those of the process that connected."""
    pid, connection = children.connect()
    with look(connection) as peer:
        assert (peer.pid, peer.uid, peer.gid) == (pid, os.getuid(), os.getgid())
        assert peer.alive()
        children.end(pid)
        assert not peer.alive()


@pytest.mark.root
def test_another_users_ids_and_groups_are_told(children, look):
    """A second user is seen with its own uid, gid and supplementary groups."""
    _, connection = children.connect(uid=USER, gid=USER + 1, groups=(44, GROUP))
    with look(connection) as peer:
        assert (peer.uid, peer.gid, peer.groups) == (USER, USER + 1, (44, GROUP))


@pytest.mark.root
def test_more_groups_than_python_can_read_are_told(children):
    """A user in 1000 groups is seen in all of them."""
    groups = tuple(range(100_000, 101_000))
    _, connection = children.connect(uid=USER, groups=groups)
    with peer_of(connection) as peer:
        assert peer.groups == groups


def test_a_peer_that_is_gone_is_not_alive(children, look):
    """A peer that was reaped before the look is never taken for a living one."""
    pid, connection = children.connect()
    kept = connection.dup()
    children.end(pid)
    with kept, look(kept) as peer:
        assert peer.pid == pid
        assert not peer.alive()
        assert not administrator(peer, admin_gid=None)


@pytest.mark.root
def test_without_the_option_another_users_pid_is_not_taken_for_the_peer(children):
    """Before Linux 6.5 a pid that went to another uid gives no pidfd."""
    pid, _ = children.connect(uid=USER)

    class Connection:
        def getsockopt(self, level: int, option: int, size: int = 0) -> bytes:
            return struct.pack("iII", pid, USER + 1, USER) if option == socket.SO_PEERCRED else b""

    peer = peer_of(Connection(), kernel_gives_pidfd=False)
    assert peer.pidfd is None
    assert not peer.alive()


def test_no_descriptor_is_left_behind(children, look):
    """Closing a peer gives its pidfd back."""
    _, connection = children.connect()
    before = open_descriptors()
    for _ in range(5):
        with look(connection):
            pass
    assert open_descriptors() == before


@pytest.mark.root
def test_root_of_the_agents_own_world_administers(children):
    """Uid 0 in the agent's namespaces and root directory is an administrator."""
    _, connection = children.connect()
    with peer_of(connection) as peer:
        assert administrator(peer, admin_gid=None)


@pytest.mark.root
def test_a_user_administers_by_the_group_only(children):
    """A user is an administrator in the admin group, primary or not, and nowhere else."""
    _, connection = children.connect(uid=USER, groups=(GROUP,))
    with peer_of(connection) as peer:
        assert administrator(peer, admin_gid=GROUP)
        assert administrator(peer, admin_gid=peer.gid)
        assert not administrator(peer, admin_gid=GROUP + 1)
        assert not administrator(peer, admin_gid=None)


@pytest.mark.root
def test_root_in_another_root_directory_does_not_administer(children, tmp_path):
    """Uid 0 in a chroot, as in a container with the socket mounted, is no administrator."""
    _, connection = children.connect(before=lambda: os.chroot(tmp_path))
    with peer_of(connection) as peer:
        assert peer.uid == 0
        assert not administrator(peer, admin_gid=None)


@pytest.mark.root
@pytest.mark.parametrize(
    "namespaces",
    [["--pid"], pytest.param(["--user", "--map-root-user"], marks=pytest.mark.userns)],
    ids=["pid", "user"],
)
def test_root_in_other_namespaces_does_not_administer(namespaces, tmp_path):
    """Host uid 0 in a pid or user namespace of its own is no administrator."""
    path = tmp_path / "socket"
    script = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\nwhile s.recv(9): pass"
    )
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(20)
        command = ["unshare", *namespaces, "--fork", "/usr/bin/env", "python3", "-c", script, str(path)]
        child = subprocess.Popen(command)
        try:
            connection, _ = listener.accept()
            with connection, peer_of(connection) as peer:
                assert peer.uid == 0
                assert peer.alive()
                assert not administrator(peer, admin_gid=None)
        finally:
            child.wait(20)


@pytest.mark.root
@pytest.mark.userns
def test_a_namespaced_root_of_a_user_is_that_user(children):
    """Root made by `unshare -U -r` is seen as the user that it is on the host."""

    def unshare() -> None:
        os.setresgid(USER, USER, USER)
        os.setresuid(USER, USER, USER)
        assert ctypes.CDLL(None).unshare(CLONE_NEWUSER) == 0

    _, connection = children.connect(before=unshare)
    with peer_of(connection) as peer:
        assert peer.uid == USER
        assert not administrator(peer, admin_gid=None)
        assert not administrator(peer, admin_gid=USER)


@pytest.mark.root
def test_a_recycled_pid_does_not_administer(children):
    """The living owner of a pid does not lend its rank to a peer that had the pid before."""
    dead, connection = children.connect()
    with peer_of(connection) as gone:
        pid, _ = children.connect()
        children.end(dead)
        impostor = Peer(pid=pid, uid=0, gid=0, groups=(), pidfd=gone.pidfd)
        assert processes.start_time_of(pid) is not None
        assert not administrator(impostor, admin_gid=None)


@pytest.mark.parametrize("pid", [0, 1])
def test_a_pid_the_agent_cannot_see_does_not_administer(pid):
    """Pid 0 (a namespace beside the agent's) and a missing pidfd are never an administrator's."""
    assert not administrator(Peer(pid=pid, uid=0, gid=0, groups=(), pidfd=None), admin_gid=0)
