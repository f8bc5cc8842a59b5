"""Shared memory of real second users: what is seen of it, and that exactly the object that was seen goes."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent.adapters import ipc
from nodeagent.adapters.ipc import IpcSpace
from nodeagent.adapters.ipc_users import IpcUsers, other_namespace, other_shm
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.ipc import Found, Kind, Users

pytestmark = pytest.mark.root

# Of these tests alone: other tests' processes would be sessions of theirs.
UID, OTHER = 47_301, 47_302
CREATE, MODE = 0o1000, 0o600
RMID = 0

libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
Act = Callable[[], object]


def checked(result: int) -> int:
    assert result != -1, os.strerror(ctypes.get_errno())
    return result


@pytest.fixture
def name() -> str:
    return f"nodeagent-test-{secrets.token_hex(6)}"


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Whatever objects of the two users a test leaves are removed."""
    yield
    for uid in (UID, OTHER):
        for found in IpcSpace().find(uid).found:
            number = int(found.name) if found.kind is not Kind.FILE else 0
            if found.kind is Kind.FILE:
                (ipc.SHM / found.name).unlink(missing_ok=True)
            elif found.kind is Kind.SEGMENT:
                libc.shmctl(number, RMID, None)
            elif found.kind is Kind.QUEUE:
                libc.msgctl(number, RMID, None)
            else:
                libc.semctl(number, 0, RMID)


@pytest.fixture
def shm(tmp_path: Path) -> Iterator[Path]:
    """A /dev/shm of the test's own, that users may write to: a tmpfs, as birth times need one."""
    made = Path("/dev/shm") / f"nodeagent-test-{secrets.token_hex(6)}"
    made.mkdir()
    made.chmod(0o1777)
    yield made
    shutil.rmtree(made)


def as_user(children, act: Act, uid: int = UID) -> int:
    """Do *act* in a child of *uid*, which ends; its pid."""

    def body() -> None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        act()

    pid = children.fork(body)
    del children.started[pid]
    assert os.waitpid(pid, 0)[1] == 0
    return pid


def segment(key: int = 0, size: int = 4096) -> int:
    return checked(libc.shmget(key, size, CREATE | MODE))


def queue(key: int = 0) -> int:
    return checked(libc.msgget(key, CREATE | MODE))


def only(space: IpcSpace, kind: Kind, uid: int = UID) -> Found:
    (one,) = (found for found in space.find(uid).found if found.kind is kind)
    return one


def create(path: Path) -> Act:
    return lambda: os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))


# -- what is seen --------------------------------------------------------------------------------------------


def test_a_dead_process_is_still_the_segments_creator(children) -> None:
    """Size, owner and creator are told after the creator's end, and nobody is attached."""
    pid = as_user(children, lambda: segment(size=1 << 20))
    found = only(IpcSpace(), Kind.SEGMENT)
    assert (found.uid, found.creator_uid, found.creator_pid) == (UID, UID, pid)
    assert (found.size_bytes, found.attached) == (1 << 20, 0)
    assert found.created is not None


def test_a_queue_tells_who_used_it_last(children) -> None:
    """No creator: the kernel keeps none. The sender is told."""

    def send() -> None:
        message = ctypes.create_string_buffer(16)
        ctypes.c_long.from_buffer(message).value = 1
        checked(libc.msgsnd(queue(), message, 4, 0))

    pid = as_user(children, send)
    found = only(IpcSpace(), Kind.QUEUE)
    assert (found.creator_pid, found.last_pids, found.creator_uid) == (0, (pid,), UID)


def test_semaphores_are_seen(children) -> None:
    """So that they can be told of; nothing removes them."""
    as_user(children, lambda: checked(libc.semget(0, 1, CREATE | MODE)))
    assert only(IpcSpace(), Kind.SEMAPHORES).creator_uid == UID


def test_a_file_tells_its_birth(children, shm: Path, name: str) -> None:
    """Changing it later makes it no younger."""
    as_user(children, create(shm / name))
    born = only(IpcSpace(shm=shm), Kind.FILE).created
    os.utime(shm / name, (1, 1))
    (shm / name).chmod(0o640)
    assert born is not None
    assert only(IpcSpace(shm=shm), Kind.FILE).created == born


def test_only_the_users_own_is_seen(children, shm: Path) -> None:
    """A neighbour's segment of the next key, its file and root's are nobody's business."""
    key = 0x4E410000 + secrets.randbelow(0xFFF0)
    as_user(children, lambda: segment(key))
    as_user(children, lambda: segment(key + 1), OTHER)
    as_user(children, create(shm / "theirs"), OTHER)
    (shm / "roots").touch()
    assert [(one.kind, one.key) for one in IpcSpace(shm=shm).find(UID).found] == [(Kind.SEGMENT, key)]


def test_a_directory_too_full_to_read_is_told(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever fills /dev/shm does not hold up grants; what is not read is not complete."""
    monkeypatch.setattr(ipc, "MOST_NAMES", 3)
    for number in range(4):
        (shm / str(number)).touch()
    assert not IpcSpace(shm=shm).find(0).complete


def test_no_shared_memory_at_all_is_none(tmp_path: Path) -> None:
    """A kernel without System V IPC, and a node without /dev/shm."""
    space = IpcSpace(proc=tmp_path, shm=tmp_path / "shm")
    assert (space.find(UID).found, space.device()) == ((), None)


# -- what goes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Kind.SEGMENT, Kind.QUEUE])
def test_what_was_seen_goes(children, kind: Kind) -> None:
    """Once; then there is nothing to remove, which is no fault."""
    as_user(children, segment if kind is Kind.SEGMENT else queue)
    found = only(IpcSpace(), kind)
    assert [IpcSpace().remove(found) for _ in range(2)] == [True, False]
    assert IpcSpace().find(UID).found == ()


def test_a_file_that_was_seen_goes(children, shm: Path, name: str) -> None:
    """Its name, whoever could still have it open."""
    as_user(children, create(shm / name))
    space = IpcSpace(shm=shm)
    found = only(space, Kind.FILE)
    assert [space.remove(found) for _ in range(2)] == [True, False]
    assert list(shm.iterdir()) == []


def test_an_id_that_was_given_again_stays(children) -> None:
    """What has the id by now is another's: key, creator and time are compared, for each kind."""
    for make, kind in ((segment, Kind.SEGMENT), (queue, Kind.QUEUE)):
        as_user(children, make)
        seen = only(IpcSpace(), kind)
        assert IpcSpace().remove(seen)
        as_user(children, make, OTHER)
        again = only(IpcSpace(), kind, OTHER)
        assert not IpcSpace().remove(replace(seen, name=again.name))
        assert only(IpcSpace(), kind, OTHER) == again


@pytest.mark.parametrize("change", ["chown", "attach"])
def test_a_segment_that_changed_meanwhile_stays(children, change: str) -> None:
    """Between look and removal it was given away, or somebody attached it."""
    as_user(children, segment)
    seen = only(IpcSpace(), Kind.SEGMENT)
    if change == "chown":
        told = ipc._Segment()
        checked(libc.shmctl(int(seen.name), 2, ctypes.byref(told)))
        told.permission.uid = OTHER
        checked(libc.shmctl(int(seen.name), 1, ctypes.byref(told)))
    else:
        address = libc.shmat(int(seen.name), None, 0)
    assert not IpcSpace().remove(seen)
    assert only(IpcSpace(), Kind.SEGMENT).name == seen.name
    if change == "attach":
        libc.shmdt(ctypes.c_void_p(address))


def test_a_file_swapped_after_the_look_stays(children, shm: Path, name: str) -> None:
    """Another file of the same user under the same name is not what was proved."""
    as_user(children, create(shm / name))
    seen = only(IpcSpace(shm=shm), Kind.FILE)
    as_user(children, create(shm / "new"))
    as_user(children, lambda: (shm / "new").rename(shm / name))
    assert not IpcSpace(shm=shm).remove(seen)
    assert (shm / name).exists()


@pytest.mark.parametrize("how", ["symlink", "hard link"])
def test_a_link_put_in_its_place_is_not_followed(children, shm: Path, name: str, how: str, tmp_path) -> None:
    """Swapped for a link to root's file after the look: neither the link's target nor the link is touched."""
    as_user(children, create(shm / name))
    seen = only(IpcSpace(shm=shm), Kind.FILE)
    target = shm / "roots"
    target.write_text("kept")
    (shm / name).unlink()
    if how == "symlink":
        as_user(children, lambda: (shm / name).symlink_to(target))
    else:
        (shm / name).hardlink_to(target)
    assert not IpcSpace(shm=shm).remove(seen)
    assert (target.read_text(), (shm / name).read_text()) == ("kept", "kept")


def test_a_link_is_never_taken_for_shared_memory(children, shm: Path) -> None:
    """A symbolic link, a file of two names, a pipe and a directory of a user are seen, and never removed."""
    as_user(children, lambda: (shm / "link").symlink_to("/etc/passwd"))
    as_user(children, create(shm / "one"))
    as_user(children, lambda: (shm / "two").hardlink_to(shm / "one"))
    as_user(children, lambda: os.mkfifo(shm / "pipe"))
    as_user(children, lambda: (shm / "directory").mkdir())
    space = IpcSpace(shm=shm)
    found = space.find(UID).found
    assert {one.name for one in found} == {"link", "one", "two", "pipe", "directory"}
    assert not any(one.plain or space.remove(one) for one in found)
    assert len(list(shm.iterdir())) == 5


def test_a_name_that_walks_removes_nothing(children, shm: Path) -> None:
    """Names are of depth one: what the directory itself lists."""
    as_user(children, create(shm / "x"))
    seen = only(IpcSpace(shm=shm), Kind.FILE)
    (shm / "inner").mkdir()
    inner = IpcSpace(shm=shm / "inner")
    assert not inner.remove(seen)
    assert (shm / "x").exists()


def test_a_directory_behind_a_link_is_refused(shm: Path, tmp_path: Path) -> None:
    """/dev/shm itself must be a directory: a link there leads wherever somebody likes."""
    (tmp_path / "shm").symlink_to(shm)
    with pytest.raises(OutsideFault, match="symbolic link"):
        IpcSpace(shm=tmp_path / "shm").find(UID)


# -- who could still want it ---------------------------------------------------------------------------------


def nobody(pid: int) -> bool:
    return False


def user_looks(space: IpcSpace, found: Found, inside: Callable[[int], bool] = nobody) -> Users:
    return IpcUsers(space.in_use).of(UID, [found], space.device(), inside)


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


def test_root_of_a_refusing_kernel_is_told(children, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernel does not let go is a fault that names the object."""
    as_user(children, segment)
    found = only(IpcSpace(), Kind.SEGMENT)

    def refuse(number: int, command: int, told: object) -> int:
        ctypes.set_errno(errno.EPERM)
        return -1

    monkeypatch.setattr(ipc._libc, "shmctl", refuse)
    with pytest.raises(OutsideFault, match=f"sysv-shm {found.name}"):
        IpcSpace().remove(found)
    monkeypatch.undo()
