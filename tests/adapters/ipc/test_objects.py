"""Shared memory of real second users: what is seen of it, and that exactly the object that was seen goes."""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
from dataclasses import replace
from pathlib import Path

import pytest
from ipc_makers import CREATE, MODE, OTHER, UID, as_user, checked, create, libc, only, queue, segment

from nodeagent.adapters import ipc
from nodeagent.adapters.ipc import IpcSpace
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.ipc import Kind

pytestmark = pytest.mark.root


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
