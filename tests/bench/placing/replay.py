"""The public trace on nodes of eight GPUs: who is granted what, and whether linked ones are left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Protocol

from nodeagent.domain.device import Inventory
from nodeagent.domain.lease import PlacedSlice
from nodeagent.domain.placement import place
from nodeagent.domain.policy import Links
from nodeagent.domain.refusals import Refusal
from nodeagent.domain.request import Policy, Request, SliceRequest

from .fgd import Fragmentation
from .nodes import Holdings
from .trace import Task, happening, tasks

GROUPS = (2, 4)  # linked GPUs that are looked for
LOOKS = 5  # each so many arrivals a look


class Chooser(Protocol):
    """Places tasks on one node."""

    def place(self, held: Holdings, task: Task) -> tuple[PlacedSlice, ...] | None: ...


@dataclass(frozen=True)
class Agents:
    """The agent's placement under one of its policies."""

    node: Inventory
    policy: Policy

    def place(self, held: Holdings, task: Task) -> tuple[PlacedSlice, ...] | None:
        placed = place(self.node, held.slices, Request((_asked(task),), self.policy))
        return None if isinstance(placed, Refusal) else placed


@dataclass(frozen=True)
class Descent:
    """The device by fragmentation gradient descent, the slice of it, or several devices, by the agent.

    To the descent whole GPUs are all alike.
    """

    node: Inventory
    fragmentation: Fragmentation

    def place(self, held: Holdings, task: Task) -> tuple[PlacedSlice, ...] | None:
        free = {device.key: 1000 for device in self.node.devices}
        for placed in held.slices:
            free[placed.placed.device] -= _milli(placed.placed, self.node)
        for devices in [(key,) for key in self.fragmentation.order(free, task)] if task.gpus == 1 else [()]:
            request = Request((replace(_asked(task), device=devices),))
            placed = place(self.node, held.slices, request)
            if not isinstance(placed, Refusal):
                return placed
        return None


def _asked(task: Task) -> SliceRequest:
    """A task's thousandths are taken of CUs and VRAM alike; whole GPUs are asked for as such."""
    if not task.shares:
        return SliceRequest(task.gpus)
    return SliceRequest(task.gpus, cu_percent=task.milli / 10, vram_percent=task.milli / 10)


def _milli(placed: PlacedSlice, node: Inventory) -> int:
    device = node.device(placed.device)
    assert device
    return -(-placed.vram_bytes * 1000 // device.grantable_bytes)


@dataclass
class Outcome:
    """What came of the tasks. Sizes are those of `size`."""

    asked: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    work: float = 0  # GPU seconds asked for
    done: float = 0  # and granted
    granted_groups: int = 0  # leases of several GPUs
    linked_groups: int = 0  # with a direct link between every two of them
    looks: int = 0
    found: Counter[int] = field(default_factory=Counter)  # looks that found so many linked idle GPUs

    def answered(self, task: Task, placed: tuple[PlacedSlice, ...] | None, links: Links) -> None:
        self.asked[size(task)] += 1
        self.work += task.work
        if placed is None:
            self.refused[size(task)] += 1
            return
        self.done += task.work
        if len(placed) > 1:
            self.granted_groups += 1
            self.linked_groups += all(
                links.linked(*pair) for pair in combinations([p.device for p in placed], 2)
            )


def size(task: Task) -> str:
    """What a task asks for, in classes: a part of a GPU, or so many."""
    if not task.shares:
        return str(task.gpus)
    return next(name for most, name in ((250, "≤ 1/4"), (500, "≤ 1/2"), (1000, "< 1")) if task.milli <= most)


def replay(chooser: Chooser, machine: Inventory, those: Iterable[Task], outcome: Outcome) -> None:
    """Let *those* tasks come and go on one node. Who is refused does not come again."""
    held, links = Holdings(), Links(machine.devices)
    for task, comes in happening(those):
        if not comes:
            held.give_back(task.number)
            continue
        placed = chooser.place(held, task)
        outcome.answered(task, placed, links)
        if placed is not None:
            held.take(task.number, placed)
        if sum(outcome.asked.values()) % LOOKS == 0:
            outcome.looks += 1
            outcome.found.update(count for count in GROUPS if _free_group(machine, held, count))


def _free_group(machine: Inventory, held: Holdings, count: int) -> bool:
    """Whether a lease of *count* whole GPUs, all linked, would be granted now."""
    request = Request((SliceRequest(count),), Policy.TOPOLOGY, link_bind=True)
    return not isinstance(place(machine, held.slices, request), Refusal)


def choosers(machine: Inventory) -> dict[str, Chooser]:
    """What is compared, by the name that the report has for it."""
    policies = (Policy.BINPACK, Policy.SPREAD, Policy.TOPOLOGY)
    return {
        **{policy.value: Agents(machine, policy) for policy in policies},
        "FGD": Descent(machine, Fragmentation.of(tasks())),
    }
