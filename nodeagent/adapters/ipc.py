"""Shared memory that outlives processes: System V objects and the files of /dev/shm, seen and removed.

Only what the agent itself has mounted, by a descriptor of the directory: never through ``/proc/<pid>/root``
or another path that a tenant makes.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nodeagent.adapters.processes import PROC
from nodeagent.adapters.systemcalls import Statx, outside_fault, statx
from nodeagent.domain.ipc import Found, Kind

SHM = Path("/dev/shm")  # noqa: S108 - shm_open(3) has no other place
# Names that one look reads: whoever fills the directory must not hold up grants.
MOST_NAMES = 16_384

_IPC_RMID, _IPC_STAT = 0, 2
_TABLES = {Kind.SEGMENT: ("shm", "shmid"), Kind.QUEUE: ("msg", "msqid"), Kind.SEMAPHORES: ("sem", "semid")}
_LAST = {Kind.SEGMENT: ("lpid",), Kind.QUEUE: ("lspid", "lrpid"), Kind.SEMAPHORES: ()}
_COLUMNS = ("ctime", "cpid", "lpid", "nattch", "size", "lspid", "lrpid", "cbytes")
_SIZE = {Kind.SEGMENT: "size", Kind.QUEUE: "cbytes"}

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Listing:
    """What belongs to one uid; not *complete* where /dev/shm has more names than are read."""

    found: tuple[Found, ...]
    complete: bool = True


class IpcSpace:
    """The agent's own IPC namespace, and its own ``/dev/shm``."""

    def __init__(self, proc: Path = PROC, shm: Path = SHM) -> None:
        self._tables = proc / "sysvipc"
        self._shm = shm

    def device(self) -> int | None:
        """The device number of /dev/shm's file system; None where there is none."""
        with self._directory() as directory:
            return None if directory is None else os.fstat(directory).st_dev

    def find(self, uid: int) -> Listing:
        """Every object that *uid* made or owns.

        Raises OutsideFault where a table or the directory cannot be read; one that is absent is empty.
        """
        objects = [found for kind in _TABLES for found in self._table(kind)]
        files, complete = self._files(uid)
        mine = (found for found in objects if uid in (found.uid, found.creator_uid))
        return Listing((*mine, *files), complete)

    def in_use(self, found: Found) -> bool | None:
        """Whether anybody has the file open or mapped, as the kernel counts; None where it does not say."""
        with self._directory() as directory:
            if directory is None:
                return False
            with _sole(directory, found) as sole:
                return None if sole is None else not sole

    def remove(self, found: Found) -> bool:
        """Remove *found*, if it still is what was seen; whether it was.

        Raises OutsideFault where the kernel says no.
        """
        try:
            return self._unlink(found) if found.kind is Kind.FILE else _remove_by_id(found)
        except OSError as fault:
            raise outside_fault(f"{found.kind} {found.shown}", fault) from fault

    def _table(self, kind: Kind) -> Iterator[Found]:
        name, id_column = _TABLES[kind]
        try:
            header, *lines = (self._tables / name).read_text(encoding="ascii").splitlines()
        except FileNotFoundError:
            return  # a kernel without System V IPC
        except OSError as fault:
            raise outside_fault(self._tables / name, fault) from fault
        columns = header.split()
        for line in lines:
            row = dict(zip(columns, map(int, line.split()), strict=True))
            yield _of_table(kind, row, str(row[id_column]))

    def _files(self, uid: int) -> tuple[list[Found], bool]:
        files: list[Found] = []
        with self._directory() as directory:
            if directory is None:
                return files, True
            with os.scandir(directory) as entries:
                for count, entry in enumerate(entries):
                    if count >= MOST_NAMES:
                        return files, False
                    found = _file(directory, entry.name)
                    if found is not None and found.uid == uid:
                        files.append(found)
        return files, True

    def _unlink(self, found: Found) -> bool:
        with self._directory() as directory:
            if directory is None or not found.plain or _file(directory, found.name) != found:
                return False
            with _sole(directory, found) as sole:
                if sole is False or _file(directory, found.name) != found:
                    return False
                os.unlink(found.name, dir_fd=directory)
                return True

    @contextmanager
    def _directory(self) -> Iterator[int | None]:
        try:
            descriptor = os.open(self._shm, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            yield None
            return
        except OSError as fault:
            raise outside_fault(self._shm, fault, ENOTDIR="no directory, or a symbolic link") from fault
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def _of_table(kind: Kind, row: Mapping[str, int], name: str) -> Found:
    """A row of ``/proc/sysvipc``: pids are those of the agent's pid namespace (ipc/shm.c, ipc/msg.c)."""
    return Found(
        kind=kind,
        name=name,
        key=row["key"],
        uid=row["uid"],
        creator_uid=row["cuid"],
        created=float(row["ctime"]),
        creator_pid=row.get("cpid", 0),
        last_pids=tuple(row[column] for column in _LAST[kind] if row[column]),
        attached=row.get("nattch", 0),
        size_bytes=row.get(_SIZE.get(kind, ""), 0),
    )


def _file(directory: int, name: str) -> Found | None:
    try:
        told = statx(directory, name)
    except FileNotFoundError:
        return None
    return Found(
        kind=Kind.FILE,
        name=name,
        key=told.inode,
        uid=told.uid,
        creator_uid=told.uid,
        created=told.born,
        size_bytes=told.blocks * 512,
        plain=_plain(told),
    )


@contextmanager
def _sole(directory: int, found: Found) -> Iterator[bool | None]:
    """Whether the file is nobody's but ours, which then stays so until the end; None where that is not told.

    A write lease (fcntl(2)) is given on what no one else has open or mapped, in whatever namespace, thread or
    socket. Whoever opens the file meanwhile waits for us.
    """
    # It may be another file by now, of any kind, with a lease of its maker's on it: nothing is waited for.
    flags = os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(found.name, flags, dir_fd=directory)
    except OSError as fault:
        yield True if fault.errno == errno.ENOENT else False if fault.errno == errno.EWOULDBLOCK else None
        return
    try:
        yield _leased(descriptor) if os.fstat(descriptor).st_ino == found.key else None
    finally:
        os.close(descriptor)


def _leased(descriptor: int) -> bool | None:
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)  # SIGIO, told of who waits, would end us
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError as fault:
        return False if fault.errno == errno.EAGAIN else None
    return True


def _plain(told: Statx) -> bool:
    return stat.S_ISREG(told.mode) and told.nlink == 1


class _Permission(ctypes.Structure):
    """``struct ipc64_perm`` (asm-generic/ipcbuf.h): the same wherever ROCm runs."""

    _fields_ = (
        ("key", ctypes.c_int32),
        ("uid", ctypes.c_uint32),
        ("gid", ctypes.c_uint32),
        ("cuid", ctypes.c_uint32),
        ("cgid", ctypes.c_uint32),
        ("mode", ctypes.c_uint32),
        ("seq", ctypes.c_uint16),
        ("_spare", ctypes.c_uint64 * 2),
    )


class _Segment(ctypes.Structure):
    """``struct shmid64_ds`` (asm-generic/shmbuf.h)."""

    _fields_ = (
        ("permission", _Permission),
        ("size", ctypes.c_size_t),
        ("atime", ctypes.c_long),
        ("dtime", ctypes.c_long),
        ("ctime", ctypes.c_long),
        ("cpid", ctypes.c_int),
        ("lpid", ctypes.c_int),
        ("nattch", ctypes.c_ulong),
        ("_spare", ctypes.c_ulong * 2),
    )


class _Queue(ctypes.Structure):
    """``struct msqid64_ds`` (asm-generic/msgbuf.h)."""

    _fields_ = (
        ("permission", _Permission),
        ("stime", ctypes.c_long),
        ("rtime", ctypes.c_long),
        ("ctime", ctypes.c_long),
        ("cbytes", ctypes.c_ulong),
        ("qnum", ctypes.c_ulong),
        ("qbytes", ctypes.c_ulong),
        ("lspid", ctypes.c_int),
        ("lrpid", ctypes.c_int),
        ("_spare", ctypes.c_ulong * 2),
    )


def _remove_by_id(found: Found) -> bool:
    """IPC_RMID where the id still is that object: the kernel gives ids again."""
    control, told = (_libc.shmctl, _Segment()) if found.kind is Kind.SEGMENT else (_libc.msgctl, _Queue())
    number = ctypes.c_int(int(found.name))
    if control(number, _IPC_STAT, ctypes.byref(told)) < 0:
        return _gone()
    if _now(found.kind, found.name, told) != found:
        return False
    return control(number, _IPC_RMID, None) == 0 or _gone()


def _now(kind: Kind, name: str, told: _Segment | _Queue) -> Found:
    held = told.permission
    row = {"key": held.key, "uid": held.uid, "cuid": held.cuid}
    return _of_table(kind, row | {column: getattr(told, column, 0) for column in _COLUMNS}, name)


def _gone() -> bool:
    """False where the object is gone; raises `OSError` for anything else."""
    number = ctypes.get_errno()
    if number not in (errno.EINVAL, errno.EIDRM):
        raise OSError(number, os.strerror(number))
    return False
