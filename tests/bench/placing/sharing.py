"""The trace dealt over nodes of eight GPUs, for every policy and the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nodeagent.domain.device import Inventory

from .nodes import inventory
from .replay import GROUPS, Outcome, choosers, replay
from .trace import Task, tasks

NAMES = ("binpack", "spread", "topology", "FGD")
Figures = dict[str, Any]


def interleaved() -> Inventory:
    """The MI210 node, its two groups of four by turns, as where PCI addresses alternate between them."""
    found = inventory("mi210")
    half = len(found.devices) // 2
    turns = zip(found.devices[:half], found.devices[half:], strict=True)
    return replace(found, devices=tuple(device for pair in turns for device in pair))


@dataclass(frozen=True, slots=True)
class Scenario:
    """Which node, which tasks, and over how many nodes they are dealt in turns."""

    node: str
    tasks: str
    nodes: int


NODES: dict[str, Callable[[], Inventory]] = {
    "two groups of four": lambda: inventory("mi210"),
    "two groups, interleaved": interleaved,
    "all eight linked": lambda: inventory("mi300x-spx"),
}
TASKS: dict[str, Callable[[], Sequence[Task]]] = {
    "all": tasks,
    "parts of GPUs": lambda: [task for task in tasks() if task.shares],
}
SCENARIOS = (
    *(Scenario(node, "parts of GPUs", 2) for node in NODES),
    *(Scenario(node, "all", nodes) for node in NODES for nodes in (8, 5)),
)


def measure() -> Iterator[Figures]:
    """A row for each scenario and name."""
    for scenario in SCENARIOS:
        for name in NAMES:
            yield row(scenario, name)


def row(scenario: Scenario, name: str) -> Figures:
    """What came of the scenario under the policy of that name."""
    machine, those, outcome = NODES[scenario.node](), TASKS[scenario.tasks](), Outcome()
    for number in range(scenario.nodes):
        replay(choosers(machine)[name], machine, those[number :: scenario.nodes], outcome)
    return {
        "node": scenario.node,
        "tasks": scenario.tasks,
        "nodes": scenario.nodes,
        "policy": name,
        "gpu_time_percent": _percent(outcome.done, outcome.work),
        "refused_percent": {
            size: _percent(outcome.refused[size], asked) for size, asked in sorted(outcome.asked.items())
        },
        "groups": [outcome.granted_groups, outcome.linked_groups],
        "found_percent": {str(count): _percent(outcome.found[count], outcome.looks) for count in GROUPS},
    }


def _percent(part: float, whole: float) -> float:
    return round(100 * part / whole, 1)
