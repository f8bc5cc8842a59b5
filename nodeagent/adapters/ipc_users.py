"""Who could still want what a lease left in shared memory: all processes of the node, as root sees them."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from nodeagent.adapters.bounded import Bounded
from nodeagent.adapters.ipc import SHM
from nodeagent.adapters.processes import PROC, every_pid, stat_of, uids_of
from nodeagent.adapters.systemcalls import statx
from nodeagent.domain.ipc import Found, Kind, Users

# Whoever opens a million descriptors must not hold up a release: what was not looked at by then is in doubt.
LOOK_SECONDS = 1.0

_Place = tuple[int, int]  # device and inode
_OpenBy = dict[str, tuple[int, ...]]


class IpcUsers:
    """Looks at all processes. Whether a file is in use says *in_use*, if it can; who has it, the processes.

    Without *in_use*, a descriptor on its way through a socket, or of a thread with a table of its own, is not
    seen: what is unlinked stays whole for either.
    """

    def __init__(
        self,
        in_use: Callable[[Found], bool | None] = lambda found: None,
        proc: Path = PROC,
        seconds: float = LOOK_SECONDS,
    ) -> None:
        self._in_use = in_use
        self._proc = proc
        self._seconds = seconds
        self._bounded = Bounded[tuple[_OpenBy, bool]](2 * seconds)

    def of(
        self, uid: int, found: Collection[Found], device: int | None, inside: Callable[[int], bool]
    ) -> Users:
        """Who of *uid* runs but for those *inside* the lease, and who else has *found* in use.

        *device* is the file system of /dev/shm. Open files are looked at only where a file is in question.
        """
        pids = every_pid(self._proc)
        session = tuple(
            pid for pid in pids if uid in (uids_of(pid, self._proc) or ()) and self._outside(pid, inside)
        )
        last = {pid for one in found for pid in one.last_pids}
        alive = frozenset(pid for pid in last if self._outside(pid, inside))
        if session or device is None:
            return Users(session, alive)  # no file goes then
        used = {one: self._in_use(one) for one in found if one.kind is Kind.FILE}
        files = {(device, one.key): one.token for one, known in used.items() if known is not False}
        named, complete = self._open_by(pids, files) if files else ({}, True)
        in_use: _OpenBy = {one.token: () for one, known in used.items() if known}
        unknown = {one.token for one, known in used.items() if known is None}
        return Users(session, alive, in_use | named, frozenset() if complete else frozenset(unknown))

    def _outside(self, pid: int, inside: Callable[[int], bool]) -> bool:
        stat = stat_of(pid, self._proc)
        return stat is not None and not stat.dead and not inside(pid)

    def _open_by(self, pids: Sequence[int], files: Mapping[_Place, str]) -> tuple[_OpenBy, bool]:
        """Who has which, and whether everybody was looked at.

        Whoever is stuck in the driver with its memory map locked must not hold up the caller.
        """
        look = self._bounded.call(lambda: _open_by(pids, files, self._proc, time.monotonic() + self._seconds))
        return look or ({}, False)


def _open_by(
    pids: Sequence[int], files: Mapping[_Place, str], proc: Path, deadline: float
) -> tuple[_OpenBy, bool]:
    open_by: dict[str, set[int]] = defaultdict(set)
    complete = True
    for pid in pids:
        if time.monotonic() > deadline:
            complete = False
            break
        try:
            for place in _places(pid, proc):
                if place in files:
                    open_by[files[place]].add(pid)
        except OSError:
            complete = False
    return {token: tuple(sorted(holders)) for token, holders in open_by.items()}, complete


def other_shm(pid: int, device: int | None, proc: Path = PROC) -> bool:
    """Whether *pid* has something else at /dev/shm than the file system *device*. False where it is gone."""
    own: int | None = None
    try:
        lines = (proc / str(pid) / "mountinfo").read_bytes().splitlines()
    except OSError:
        return False
    for line in lines:
        fields = line.split(b" ")
        if fields[4] == os.fsencode(SHM):  # the last one covers those before it
            major, _, minor = fields[2].partition(b":")
            own = os.makedev(int(major), int(minor))
    return bool(lines) and own != device


def other_namespace(pid: int, name: str, proc: Path = PROC) -> bool:
    """Whether *pid* is in another namespace *name* than the agent. False where it is gone."""
    try:
        return (proc / str(pid) / "ns" / name).readlink() != (PROC / "self/ns" / name).readlink()
    except OSError:
        return False


def _places(pid: int, proc: Path) -> Iterator[_Place]:
    """Device and inode of everything that *pid* has open or mapped; nothing once it is gone."""
    stat = stat_of(pid, proc)
    if stat is None or stat.dead:
        return
    directory = proc / str(pid)
    if stat.state == "Z":  # its leader has ended, and its other threads have not
        directory = _last_thread(directory / "task") or directory
    yield from _open(directory / "fd")
    yield from _mapped(directory / "maps")


def _open(directory: Path) -> Iterator[_Place]:
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return
    try:
        with os.scandir(descriptor) as entries:
            for entry in entries:
                with suppress(FileNotFoundError, ProcessLookupError):
                    told = statx(descriptor, entry.name, follow=True)
                    yield told.device, told.inode
    finally:
        os.close(descriptor)


def _mapped(maps: Path) -> Iterator[_Place]:
    """``address perms offset major:minor inode path``: proc_pid_maps(5)."""
    try:
        lines = maps.read_bytes().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return
    for line in lines:
        fields = line.split(maxsplit=5)
        if len(fields) >= 5 and fields[4] != b"0":
            major, _, minor = fields[3].partition(b":")
            yield os.makedev(int(major, 16), int(minor, 16)), int(fields[4])


def _last_thread(tasks: Path) -> Path | None:
    try:
        return max(tasks.iterdir(), key=lambda path: int(path.name), default=None)
    except (FileNotFoundError, ProcessLookupError):
        return None
