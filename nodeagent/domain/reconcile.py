"""What is to be done where the ledger and the node differ: one named action for each kind of difference.

Leases that the ledger knows are kept by their journals, anchors and the watch. This is about what is there
beside it: left by a crash, made by somebody, or remembered where the ledger has forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Action(StrEnum):
    """In the order in which they are taken: a unit is stopped before its cgroup is removed."""

    REPORT_CGROUP = "report_cgroup"
    STOP_UNIT = "stop_unit"
    REMOVE_CGROUP = "remove_cgroup"
    REMOVE_HOOK_FILES = "remove_hook_files"


@dataclass(frozen=True, slots=True)
class SeenCgroup:
    """A lease's cgroup in the instance's own subtree, of which the ledger need not know."""

    path: str
    inode: int
    populated: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was seen, by lease id. The node is read before the ledger.

    A lease is in the ledger before anything is made for it, so that what was seen and is not *known* has
    no lease, or that has ended meanwhile.
    """

    known: frozenset[int] = frozenset()  # not ended, holding a slice, or with something left to undo
    cgroups: Mapping[int, SeenCgroup] = field(default_factory=dict)
    units: frozenset[int] = frozenset()  # slice units that systemd runs
    hooked: frozenset[int] = frozenset()  # those with files of the hook


@dataclass(frozen=True, slots=True)
class Step:
    """One action for one lease, and the difference that calls for it."""

    action: Action
    lease: int
    why: str

    @property
    def stops_grants(self) -> bool:
        """Whether somebody may be using what the ledger takes for free. Never killed: it is not ours to."""
        return self.action is Action.REPORT_CGROUP


def plan(seen: Snapshot) -> tuple[Step, ...]:
    """The actions that *seen* calls for, in the order in which they are to be taken."""
    order = list(Action)
    beside = (seen.cgroups.keys() | seen.units | seen.hooked) - seen.known
    steps = [step for lease in sorted(beside) for step in _unknown(lease, seen)]
    return tuple(sorted(steps, key=lambda step: (order.index(step.action), step.lease)))


def _unknown(lease: int, seen: Snapshot) -> Iterator[Step]:
    """What becomes of a lease's things when it has ended or never was. Under a process: nothing."""
    cgroup = seen.cgroups.get(lease)
    if cgroup is not None and cgroup.populated:
        yield Step(
            Action.REPORT_CGROUP, lease, f"the ledger does not know the populated cgroup {cgroup.path}"
        )
        return
    if lease in seen.units:
        yield Step(Action.STOP_UNIT, lease, f"systemd runs the slice of lease {lease}, which is none")
    if cgroup is not None:
        yield Step(Action.REMOVE_CGROUP, lease, f"{cgroup.path} is empty, and of no lease")
    if lease in seen.hooked:
        yield Step(Action.REMOVE_HOOK_FILES, lease, f"the hook has files of lease {lease}, which is none")
