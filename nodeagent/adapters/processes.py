"""Who a process is, and whether it still is: by start time where only a pid is known, else by pidfd."""

from __future__ import annotations

import errno
import os
import select
import signal
from dataclasses import dataclass
from pathlib import Path

from nodeagent.adapters.systemcalls import outside_fault

# Fields after the command name, counted from `state` (field 3 of proc_pid_stat(5)).
_STATE, _THREADS, _START_TIME = 0, 17, 19

PROC = Path("/proc")
TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")  # one tick of a start time
_A_THREAD = (errno.EINVAL, errno.ENOENT)  # what pidfd_open says of one, by kernel version


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """What tells one process from a later one of the same pid."""

    pid: int
    state: str  # one letter: R, S, D, T, Z, X…
    threads: int
    start_time: int  # clock ticks since boot

    @property
    def dead(self) -> bool:
        """Whether no thread of it runs any more; a leader that ended before its threads also shows Z."""
        return self.state in "XxZ" and self.threads <= 1


def every_pid(proc: Path = PROC) -> list[int]:
    """All processes, in order; some may have ended by the time that they are looked at. Raises OSError."""
    return sorted(int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal())


def stat_of(pid: int, proc: Path = PROC) -> ProcessStat | None:
    """Read ``/proc/<pid>/stat``; None where there is no such process or the line is cut."""
    line = _read(proc / str(pid) / "stat")
    # The command name may hold blanks and parentheses: only the last ")" ends it.
    _, closed, rest = (line or b"").rpartition(b")")
    fields = rest.split()
    if not closed or len(fields) <= _START_TIME:
        return None
    return ProcessStat(
        pid=pid,
        state=fields[_STATE].decode("ascii", "replace"),
        threads=int(fields[_THREADS]),
        start_time=int(fields[_START_TIME]),
    )


def start_time_of(pid: int, proc: Path = PROC) -> int | None:
    """When *pid* started, in clock ticks since boot; None where no such process runs."""
    stat = stat_of(pid, proc)
    return None if stat is None or stat.dead else stat.start_time


def alive(pid: int, start_time: int, proc: Path = PROC) -> bool:
    """Whether the process that had *pid* and *start_time* still runs; a zombie does not."""
    return start_time_of(pid, proc) == start_time


def uids_of(pid: int, proc: Path = PROC) -> tuple[int, int, int, int] | None:
    """Real, effective, saved and file system uid, or None where there is no such process."""
    values = _status(pid, b"Uid:", proc)
    if values is None or len(values) != 4:
        return None
    return values[0], values[1], values[2], values[3]


def parent_of(pid: int, proc: Path = PROC) -> int | None:
    """The pid of the parent now; None where there is no such process."""
    values = _status(pid, b"PPid:", proc)
    return values[0] if values else None


def leads_its_group(pid: int) -> bool:
    """Whether *pid* is a process, not one thread of another: ``/proc/<tid>`` works for threads, too."""
    return _status(pid, b"Tgid:", PROC) == [pid]


def pidfd_open(pid: int) -> int | None:
    """Hold the process *pid* by a descriptor that no later process can take over.

    None where it is gone, also where a thread of another process has its number by now.
    """
    if pid <= 0:
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    except OSError as fault:
        if fault.errno in _A_THREAD:
            return None
        raise outside_fault(f"pidfd_open({pid})", fault, ENOSYS="needs Linux 5.3") from fault


def pidfd_alive(pidfd: int) -> bool:
    """Whether the process has not ended: a pidfd is readable from then on, zombie or not."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return not poll.poll(0)


def send_signal(pidfd: int, number: int) -> bool:
    """Signal the process behind *pidfd*; whether it was still there. There is no way to signal by pid."""
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    return True


def gpu_in_use(pid: int, kfd_proc_root: Path) -> bool:
    """Whether *pid* has opened /dev/kfd: it then has a directory in *kfd_proc_root*.

    *kfd_proc_root* is ``sys/class/kfd/kfd/proc``; the entry is there from the first open until the memory map
    is gone (kfd_process.c), named by the pid in the initial pid namespace.
    """
    return (kfd_proc_root / str(pid)).is_dir()


def _status(pid: int, key: bytes, proc: Path) -> list[int] | None:
    for line in (_read(proc / str(pid) / "status") or b"").splitlines():
        if line.startswith(key):
            return [int(value) for value in line.split()[1:]]
    return None


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError as fault:
        raise outside_fault(path, fault) from fault
