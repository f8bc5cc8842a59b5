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

    REBUILD_LEASE = "rebuild_lease"
    THAW_CGROUP = "thaw_cgroup"
    WRITE_SIDECAR = "write_sidecar"
    REMOVE_SIDECAR = "remove_sidecar"
    REPORT_SIDECAR = "report_sidecar"
    REPORT_CGROUP = "report_cgroup"
    STOP_UNIT = "stop_unit"
    REMOVE_CGROUP = "remove_cgroup"
    REMOVE_FILES = "remove_files"


@dataclass(frozen=True, slots=True)
class SeenCgroup:
    """A lease's cgroup in the instance's own subtree, of which the ledger need not know."""

    path: str
    inode: int
    populated: bool


@dataclass(frozen=True, slots=True)
class SeenSidecar:
    """The sidecar of a lease that this ledger never had: it has lost it.

    *broken*: why it is none. *there*: the cgroup that it names is still that one, or it names none. *in_use*:
    a process runs for it. *refused*: why the ledger did not take it back.
    """

    path: str
    broken: str | None = None
    this_boot: bool = True
    there: bool = True
    in_use: bool = False
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was seen, by lease id. The node is read before the ledger.

    A lease is in the ledger before anything is made for it, so that what was seen and is not *known* has
    no lease, or that has ended meanwhile.
    """

    known: frozenset[int] = frozenset()  # not ended, holding a slice, or with something left to undo
    cgroups: Mapping[int, SeenCgroup] = field(default_factory=dict)
    units: frozenset[int] = frozenset()  # slice units that systemd runs
    filed: frozenset[int] = frozenset()  # those with files of the hook or for containers
    sidecars: frozenset[int] = frozenset()
    outdated: frozenset[int] = frozenset()  # those that shall have a sidecar that says so, and have not
    wanted: frozenset[int] = frozenset()  # those that shall have one
    forgotten: Mapping[int, SeenSidecar] = field(default_factory=dict)  # those that this ledger never had
    frozen: Mapping[int, str] = field(
        default_factory=dict
    )  # those that are to run, with the path that stands still


@dataclass(frozen=True, slots=True)
class Step:
    """One action for one lease, and the difference that calls for it."""

    action: Action
    lease: int
    why: str

    @property
    def stops_grants(self) -> bool:
        """Whether somebody may be using what the ledger takes for free. Never killed: it is not ours to."""
        return self.action in (Action.REPORT_CGROUP, Action.REBUILD_LEASE)


def plan(seen: Snapshot) -> tuple[Step, ...]:
    """The actions that *seen* calls for, in the order in which they are to be taken."""
    order = list(Action)
    steps = [*_sidecars(seen), *_frozen(seen)]
    lost = {step.lease for step in steps if step.action is Action.REBUILD_LEASE}
    beside = (seen.cgroups.keys() | seen.units | seen.filed) - seen.known - lost
    steps += [step for lease in sorted(beside) for step in _things(lease, seen)]
    return tuple(sorted(steps, key=lambda step: (order.index(step.action), step.lease)))


def _frozen(seen: Snapshot) -> Iterator[Step]:
    """A release freezes the cgroup that it found empty; in a ledger of before that, the lease is live."""
    for lease, path in seen.frozen.items():
        yield Step(Action.THAW_CGROUP, lease, f"{path} is frozen, and lease {lease} is not being released")


def _sidecars(seen: Snapshot) -> Iterator[Step]:
    for lease in seen.outdated:
        missing = "has none" if lease not in seen.sidecars else "has one of before"
        yield Step(Action.WRITE_SIDECAR, lease, f"lease {lease} {missing}")
    for lease in seen.sidecars - seen.wanted:
        if lease in seen.forgotten and lease not in seen.known:
            yield _forgotten(lease, seen.forgotten[lease])
        else:
            yield Step(Action.REMOVE_SIDECAR, lease, f"lease {lease} has ended")


def _forgotten(lease: int, sidecar: SeenSidecar) -> Step:
    """What becomes of the sidecar of a lease that this ledger never had."""
    if sidecar.broken is not None:
        return Step(Action.REPORT_SIDECAR, lease, f"{sidecar.path}: {sidecar.broken}")
    if not sidecar.this_boot:
        return Step(Action.REMOVE_SIDECAR, lease, f"lease {lease} is of another boot")
    if not sidecar.there:
        return Step(
            Action.REMOVE_SIDECAR, lease, f"the cgroup of lease {lease} is gone, or another has its name"
        )
    if sidecar.refused is None:
        return Step(Action.REBUILD_LEASE, lease, f"the ledger lost lease {lease}")
    if sidecar.in_use:
        return Step(Action.REBUILD_LEASE, lease, f"lease {lease} runs and is lost: {sidecar.refused}")
    return Step(
        Action.REMOVE_SIDECAR, lease, f"lease {lease} is lost, and nobody runs in it: {sidecar.refused}"
    )


def _things(lease: int, seen: Snapshot) -> Iterator[Step]:
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
    if lease in seen.filed:
        yield Step(Action.REMOVE_FILES, lease, f"there are files of lease {lease}, which is none")
