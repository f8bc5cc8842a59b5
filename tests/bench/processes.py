"""What a server uses while nobody asks it: processor time, wake-ups and memory of its processes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Used:
    """Of all threads together, since each began."""

    seconds: float  # of a processor
    wakeups: int  # times that a thread slept and was woken

    def __sub__(self, other: Used) -> Used:
        return Used(self.seconds - other.seconds, self.wakeups - other.wakeups)


def used(pids: Iterable[int]) -> Used:
    """What the threads of *pids* used; proc_pid_schedstat in nanoseconds, as stat's ticks are 10 ms."""
    nanoseconds = wakeups = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            nanoseconds += int((task / "schedstat").read_text(encoding="ascii").split()[0])
            status = (task / "status").read_text(encoding="utf-8")
            wakeups += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return Used(nanoseconds / 1e9, wakeups)


def pss_mib(pids: Iterable[int]) -> float:
    """The memory of *pids*, what they share with others in equal parts; proc_pid_smaps_rollup."""
    kib = 0
    for pid in pids:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
        kib += int(text.partition("\nPss:")[2].split()[0])
    return kib * 1024 / MIB
