"""Two users of these tests alone, and what they make in shared memory."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

from nodeagent.adapters.ipc import IpcSpace
from nodeagent.domain.ipc import Found, Kind

# Of this run alone: another one's processes would be sessions of theirs.
UID, OTHER = 510_000_000 + os.getpid(), 520_000_000 + os.getpid()
CREATE, MODE = 0o1000, 0o600
RMID = 0

libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
Act = Callable[[], object]


def checked(result: int) -> int:
    assert result != -1, os.strerror(ctypes.get_errno())
    return result


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
