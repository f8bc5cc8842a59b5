"""Fragmentation gradient descent, the reference: written from the description in the trace's paper.

What is free on a node is fragment to a class of tasks if the class cannot use it; the expectation over the
classes, by how often each comes, is the node's fragmentation. A task goes where that grows least. The paper's
measure knows GPUs, processors and memory; here a node has GPUs only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from .trace import Task


@dataclass(frozen=True)
class Fragmentation:
    """Measures it for the classes of tasks that come."""

    classes: Mapping[tuple[int, int], float]  # (GPUs, thousandths of each) to its share of all tasks

    @classmethod
    def of(cls, tasks: Iterable[Task]) -> Fragmentation:
        counts = Counter((task.gpus, task.milli) for task in tasks)
        return cls({kind: count / counts.total() for kind, count in counts.items()})

    def of_node(self, free: Sequence[int]) -> float:
        """Thousandths of GPUs that are fragment, of a node with *free* thousandths left of each."""
        return sum(share * self._to(free, *kind) for kind, share in self.classes.items())

    def _to(self, free: Sequence[int], gpus: int, milli: int) -> int:
        fitting = [left for left in free if left >= milli]
        return sum(free) if len(fitting) < gpus else sum(left for left in free if left < milli)

    def order(self, free: Mapping[str, int], task: Task) -> list[str]:
        """The devices that *task*, which asks one, fits on: the steepest descent first."""

        def after(key: str) -> float:
            return self.of_node([left - task.milli * (one == key) for one, left in free.items()])

        return sorted((key for key, left in free.items() if left >= task.milli), key=after)


Order = Callable[[Mapping[str, int], Task], list[str]]
