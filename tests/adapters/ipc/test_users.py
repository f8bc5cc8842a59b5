"""Who could still want what a lease left: real processes that hold it, hide it, or look as if they did."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ipc_makers import OTHER, UID, as_user, create, libc, only, segment

from nodeagent.adapters.ipc import IpcSpace, _sole
from nodeagent.adapters.ipc_users import IpcUsers, other_namespace, other_shm
from nodeagent.adapters.processes import stat_of
from nodeagent.domain.ipc import Found, Kind, Users

pytestmark = pytest.mark.root


def until(look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not look():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.01)


def nobody(pid: int) -> bool:
    return False


def user_looks(space: IpcSpace, found: Found, inside: Callable[[int], bool] = nobody) -> Users:
    return IpcUsers(space.in_use, seconds=60).of(UID, [found], space.device(), inside)


def holder(path: Path, *, mapped: bool) -> Callable[[], None]:
    """Opens *path*; *mapped*: maps it and closes it again."""

    def hold() -> None:
        descriptor = os.open(path, os.O_RDWR)
        if mapped:
            os.truncate(path, 4096)
            holder.kept = mmap.mmap(descriptor, 4096)  # type: ignore[attr-defined]
            os.close(descriptor)

    return hold


@pytest.mark.parametrize("mapped", [False, True])
def test_who_has_a_file_is_found(children, shm: Path, name: str, mapped: bool) -> None:
    """Open, or mapped with its descriptor closed, by another user, under a name that has changed since."""
    as_user(children, create(shm / name))
    (shm / name).chmod(0o666)
    pid, _ = children.connect(uid=OTHER, before=holder(shm / name, mapped=mapped))
    (shm / name).rename(shm / "renamed")
    space = IpcSpace(shm=shm)
    found = only(space, Kind.FILE)
    users = user_looks(space, found)
    assert users.open_by == {found.token: (pid,)}
    assert users.session == ()


def test_a_session_of_the_user_is_found(children, shm: Path, name: str) -> None:
    """Any process of the uid that is not the lease's, if only its saved uid; a dead one is none."""
    as_user(children, create(shm / name))
    space = IpcSpace(shm=shm)
    found = only(space, Kind.FILE)
    pid, _ = children.connect(uid=UID)
    assert user_looks(space, found).session == (pid,)
    assert user_looks(space, found, lambda one: one == pid).session == ()
    children.end(pid)
    assert user_looks(space, found) == Users()


def test_who_touched_a_segment_and_still_runs_is_found(children) -> None:
    """Attached and detached: it may come back, so it counts as long as it lives."""
    as_user(children, lambda: segment())
    identifier = int(only(IpcSpace(), Kind.SEGMENT).name)

    def touch() -> None:
        libc.shmdt(ctypes.c_void_p(libc.shmat(identifier, None, 0)))

    pid, _ = children.connect(uid=UID, before=touch, saved_uid=UID)
    found = only(IpcSpace(), Kind.SEGMENT)
    assert user_looks(IpcSpace(), found).alive == {pid}
    assert found.attached == 0


@pytest.mark.parametrize("hold", ["mapped", "sent", "open"])
def test_the_kernel_counts_every_user_of_a_file(children, shm: Path, name: str, hold: str) -> None:
    """Mapped with its descriptor closed, on its way through a socket, or open: it is in use, and stays."""
    as_user(children, create(shm / name))
    (shm / name).chmod(0o666)
    space = IpcSpace(shm=shm)
    assert space.in_use(only(space, Kind.FILE)) is False
    with contextlib.ExitStack() as stack:
        holders: tuple[int, ...] = ()
        if hold == "mapped":
            holders = (children.connect(uid=OTHER, before=holder(shm / name, mapped=True))[0],)
        else:
            file = stack.enter_context((shm / name).open("rb"))
            holders = (os.getpid(),)
            if hold == "sent":
                one, _two = map(stack.enter_context, socket.socketpair())
                socket.send_fds(one, [b"x"], [file.fileno()])
                file.close()
                holders = ()
        found = only(space, Kind.FILE)
        assert space.in_use(found) is True
        assert not space.remove(found)
        assert user_looks(space, found).open_by == {found.token: holders}
    for pid in list(children.started):
        children.end(pid)
    assert space.in_use(found) is False
    assert space.remove(found)


def test_a_lease_of_its_maker_is_not_waited_for(children, shm: Path, name: str) -> None:
    """By fcntl(2) a user makes whoever opens its file wait for 45 seconds: the file counts as in use."""
    as_user(children, create(shm / name))

    def lease() -> None:
        lease.kept = os.open(shm / name, os.O_RDWR)  # type: ignore[attr-defined]
        fcntl.fcntl(lease.kept, fcntl.F_SETSIG, signal.SIGURG)  # type: ignore[attr-defined]
        fcntl.fcntl(lease.kept, fcntl.F_SETLEASE, fcntl.F_WRLCK)  # type: ignore[attr-defined]

    children.connect(uid=UID, before=lease, saved_uid=UID)
    space = IpcSpace(shm=shm)
    assert space.in_use(only(space, Kind.FILE)) is True


def test_who_opens_a_file_meanwhile_waits_and_ends_nobody(children, shm: Path, name: str) -> None:
    """While its lease is held an opener waits; the signal that the kernel sends us for it does nothing."""
    as_user(children, create(shm / name))
    found = only(IpcSpace(shm=shm), Kind.FILE)
    directory = os.open(shm, os.O_RDONLY)
    with _sole(directory, found) as sole:
        assert sole
        opener = subprocess.Popen(["cat", shm / name])  # executed: a forked child would share what we hold
        until(lambda: "lease" in Path(f"/proc/{opener.pid}/wchan").read_text())
    os.close(directory)
    assert opener.wait(20) == 0


def test_the_files_of_a_process_whose_leader_has_ended_are_seen(children, shm: Path, name: str) -> None:
    """Its threads run on, with the file open: /proc shows none of the leader's."""
    (shm / name).touch()
    script = f"""
import ctypes, os, threading, time
os.open({str(shm / name)!r}, os.O_RDONLY)
threading.Thread(target=time.sleep, args=(600,)).start()
print("up", flush=True)
ctypes.CDLL(None).syscall(60, 0)
"""
    with subprocess.Popen(["/usr/bin/python3", "-c", script], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == b"up\n"
            until(lambda: stat_of(child.pid).state == "Z")
            space = IpcSpace(shm=shm)
            found = only(space, Kind.FILE, 0)
            users = IpcUsers().of(UID, [found], space.device(), nobody)
            assert users.open_by == {found.token: (child.pid,)}
        finally:
            child.kill()


@pytest.mark.parametrize("kernel", [None, True, False])
def test_who_cannot_be_looked_at_is_in_doubt(children, shm: Path, name: str, kernel: bool | None) -> None:
    """Time is up before all processes were looked at: only the kernel's own word can tell."""
    as_user(children, create(shm / name))
    space = IpcSpace(shm=shm)
    found = only(space, Kind.FILE)
    looks = IpcUsers(lambda found: kernel, seconds=0)
    users = looks.of(UID, [found], space.device(), nobody)
    assert users.unseen == ({found.token} if kernel is None else set())
    assert users.open_by == ({found.token: ()} if kernel else {})


def test_a_namespace_of_its_own_is_seen() -> None:
    """A process after unshare(2) has another System V world, and another /dev/shm once it mounts one."""
    script = "mount -t tmpfs none /dev/shm && echo up && exec sleep 600"
    with subprocess.Popen(
        ["unshare", "--ipc", "--mount", "sh", "-c", script], stdout=subprocess.PIPE
    ) as child:
        try:
            assert child.stdout is not None
            if child.stdout.readline() != b"up\n":
                pytest.skip("mounting is not allowed here")
            device = IpcSpace().device()
            assert other_namespace(child.pid, "ipc")
            assert other_shm(child.pid, device)
            assert not other_namespace(os.getpid(), "ipc")
            assert not other_shm(os.getpid(), device)
        finally:
            child.kill()


def test_a_process_that_is_gone_has_no_namespace() -> None:
    """It tells nothing any more, so it keeps nothing."""
    assert not other_namespace(0, "ipc")
    assert not other_shm(0, None)
