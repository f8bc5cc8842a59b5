"""A public workload: the tasks with GPUs of Alibaba's cluster-trace-gpu-v2023, a production cluster's.

`trace.csv.xz` is made of `openb_pod_list_default.csv` in alibaba/clusterdata: a row for each of the 7,064
tasks that asked for GPUs, by creation time, with the columns that are used here. The trace's terms, from its
repository's README: it may be used however one wants for research or study. Its paper: Weng et al., "Beware
of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent", USENIX ATC 2023.
"""

from __future__ import annotations

import csv
import heapq
import lzma
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("trace.csv.xz")


@dataclass(frozen=True, slots=True)
class Task:
    """One task: *gpus* whole GPUs, or *milli* thousandths of one."""

    number: int
    gpus: int
    milli: int
    created: int  # seconds
    lived: int  # seconds, from its creation to its end

    @property
    def shares(self) -> bool:
        """Whether it asks for a part of a GPU."""
        return self.milli < 1000

    @property
    def work(self) -> float:
        """GPU seconds."""
        return self.gpus * self.milli / 1000 * self.lived


@cache
def tasks() -> tuple[Task, ...]:
    """The whole trace, in the order in which its tasks came."""
    with lzma.open(FILE, "rt", encoding="ascii") as rows:
        return tuple(
            Task(number, *(int(row[name]) for name in ("gpus", "milli", "created", "lived")))
            for number, row in enumerate(csv.DictReader(rows))
        )


def happening(those: Iterable[Task]) -> Iterator[tuple[Task, bool]]:
    """Each task twice, in the order of time: as it comes (True), and as it ends (False)."""
    ending: list[tuple[int, int, Task]] = []
    for task in those:
        while ending and ending[0][0] <= task.created:
            yield heapq.heappop(ending)[2], False
        yield task, True
        heapq.heappush(ending, (task.created + task.lived, task.number, task))
