"""Which lease a process belongs to: by the recorded cgroup's path and inode, or by the recorded process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nodeagent.adapters.cgroup import CgroupRef, CgroupTree
from nodeagent.adapters.processes import PROC, parent_of, start_time_of
from nodeagent.domain.clock import Clock
from nodeagent.domain.watch import Owner
from nodeagent.ledger.queries import Queries
from nodeagent.service.cgroup_effects import ADOPTED, CGROUP, PROCESS, ref_of

GENERATIONS = 16  # how far up a process's parents are followed to one that is recorded


@dataclass(frozen=True, slots=True)
class Identity:
    """A process, told from a later one of its pid, and whose it is."""

    pid: int
    start_time: int
    owner: Owner


@dataclass(frozen=True, slots=True)
class Owners:
    """What the journals of leases that hold something say, as it stands on the node now."""

    tree: CgroupTree | None
    refs: Mapping[int, CgroupRef]  # by lease: its cgroup as recorded; it may be gone
    cgroups: Mapping[str, Mapping[int, int]]  # lease by inode, by path: only that of the path now counts
    processes: Mapping[tuple[int, int], int]  # lease by pid and start time
    proc: Path = PROC
    mounted: Callable[[int], Owner] = lambda pid: None  # by what an engine mounted into its container

    def of(self, pid: int) -> Identity | None:
        """Who *pid* is and whose; None where it has ended."""
        start_time = start_time_of(pid, self.proc)
        if start_time is None:
            return None
        owner = self.by_cgroup(pid) or self.mounted(pid) or self._by_process(pid)
        return Identity(pid, start_time, owner)

    def of_all(self, pids: Iterable[int]) -> dict[int, Identity]:
        return {pid: identity for pid in pids if (identity := self.of(pid))}

    def of_zombie(self, pid: int) -> Owner:
        """Whose *pid* was, if it has ended and its parent took no note yet: so long it has its cgroup."""
        return self.by_cgroup(pid)

    def by_cgroup(self, pid: int) -> Owner:
        path = self.tree.cgroup_of(pid) if self.tree and self.cgroups else None
        while path and path != "/":  # leases nest, so the innermost counts
            recorded = self.cgroups.get(path)
            ref = self.tree.resolve(path) if self.tree and recorded else None
            if recorded and ref is not None and ref.inode in recorded:
                return recorded[ref.inode]
            path = path.rpartition("/")[0]
        return None

    def _by_process(self, pid: int | None) -> Owner:
        for _ in range(GENERATIONS if self.processes else 0):
            start_time = start_time_of(pid, self.proc) if pid else None
            if pid is None or start_time is None:
                return None
            if (pid, start_time) in self.processes:
                return self.processes[pid, start_time]
            pid = parent_of(pid, self.proc)
        return None


def owners(
    ledger: Queries,
    tree: CgroupTree | None,
    clock: Clock,
    mounted: Callable[[int], Owner] = lambda pid: None,
) -> Owners:
    """Read the journals of all leases that are live or still hold a slice.

    Threat 14: a cgroup is a lease's only while its path leads to the recorded inode; names say nothing.
    """
    refs: dict[int, CgroupRef] = {}
    cgroups: dict[str, dict[int, int]] = {}
    processes: dict[tuple[int, int], int] = {}
    present = ledger.present()
    for lease, journal in ledger.journals(sorted(present), (CGROUP, ADOPTED, PROCESS)).items():
        for record in journal:
            here = record.arguments.get("boot_id", clock.boot_id) == clock.boot_id
            ref = ref_of(record.evidence or {}) if record.kind == CGROUP else None
            if record.kind == ADOPTED and here:
                ref = ref_of(record.arguments)
            if ref is not None:
                refs[lease] = ref
                cgroups.setdefault(ref.path, {})[ref.inode] = lease
            if record.kind == PROCESS and here:
                arguments: Mapping[str, object] = record.arguments
                processes[int(str(arguments["pid"])), int(str(arguments["start_time"]))] = lease

    def holding(pid: int) -> Owner:
        lease = mounted(pid)
        return lease if lease in present else None

    return Owners(tree, refs, cgroups, processes, mounted=holding)
