"""A cgroup's processes, one by one: who they are, to signal them, and to kill them before Linux 5.14."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterator

from nodeagent.adapters.processes import pidfd_open, send_signal

# Together at most a second: processes in uninterruptible sleep stay listed, and the caller waits for those.
ROUNDS = 200
PAUSE_SECONDS = 0.005
# How many pidfds are held at once, far below any descriptor limit.
_BATCH = 128


def sweep(directory: int) -> None:
    """SIGKILL everything in and below the cgroup of the descriptor *directory*.

    Frozen first where the kernel can (5.2), so that a storm of forks stands still; without that, repeated
    rounds overtake it or the number of rounds ends. A frozen process dies of SIGKILL all the same.
    """
    _freeze(directory, True)
    try:
        for _ in range(ROUNDS):
            if not _kill_round(directory):
                return
            time.sleep(PAUSE_SECONDS)
    finally:
        _freeze(directory, False)


def child_names(directory: int) -> list[str]:
    """The names of the directories in the open *directory*; none once it was removed."""
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def _kill_round(directory: int) -> bool:
    """Signal every process found once; whether any was found."""
    found = False
    for at in _descend(directory):
        pids = _pids(at)
        found = found or bool(pids)
        for first in range(0, len(pids), _BATCH):
            signal_members(at, pids[first : first + _BATCH], signal.SIGKILL)
    return found


def members(directory: int, path: str, without: Collection[str]) -> tuple[int, ...]:
    """Who is in the open cgroup *directory*, which is *path*, and below it; not below the paths *without*.

    One that is removed meanwhile has nobody. Processes of a foreign pid namespace show as 0 and are left out.
    """
    return tuple(pid for at in _descend(directory, path, without) for pid in _pids(at) if pid)


def ask(directory: int, number: int) -> None:
    """Send *number* once to everything in and below the cgroup of the descriptor *directory*.

    What is forked meanwhile may miss it. The stopped are woken: they would not hear it else.
    """
    for at in _descend(directory):
        pids = _pids(at)
        for first in range(0, len(pids), _BATCH):
            signal_members(at, pids[first : first + _BATCH], number, signal.SIGCONT)


def signal_members(directory: int, pids: list[int], *numbers: int) -> None:
    """Send *numbers*, in order, to those of *pids* that are members while their pidfd is held.

    Listed again after the pidfd was opened: a pid that went to a stranger in between is then not listed,
    and a pidfd of an older process of a listed pid reaches nobody.
    """
    held: dict[int, int] = {}
    try:
        for pid in pids:
            pidfd = pidfd_open(pid)
            if pidfd is not None:
                held[pid] = pidfd
        members = set(_pids(directory))
        for pid, pidfd in held.items():
            if pid in members:
                for number in numbers:
                    send_signal(pidfd, number)
    finally:
        for pidfd in held.values():
            os.close(pidfd)


def _descend(directory: int, path: str = "", without: Collection[str] = ()) -> Iterator[int]:
    """Yield *directory*, which is *path*, and, one at a time, a descriptor of each cgroup below it.

    Those of the paths *without*, and what is below them, are passed over.
    """
    yield directory
    for name in child_names(directory):
        below = f"{path}/{name}"
        if below in without:
            continue
        try:
            child = os.open(
                name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory
            )
        except FileNotFoundError:
            continue
        try:
            yield from _descend(child, below, without)
        finally:
            os.close(child)


def _pids(directory: int) -> list[int]:
    """Members of this one cgroup; none once it was removed (ENOENT before the open, ENODEV after it)."""
    try:
        descriptor = os.open("cgroup.procs", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        with os.fdopen(descriptor, encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def _freeze(directory: int, frozen: bool) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open("cgroup.freeze", os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            os.write(descriptor, b"1" if frozen else b"0")
        finally:
            os.close(descriptor)
