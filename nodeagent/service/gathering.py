"""Brings a container's processes into its lease's cgroup, where their engine has them in other cgroups.

That is so on nodes with version 1. They are held late there, so nothing is stated of it; but the lease sees
who lives, and ends them all.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from nodeagent.adapters.cgroup import CgroupTree, OpenCgroup
from nodeagent.adapters.container_processes import LeaseMounts
from nodeagent.adapters.processes import start_time_of
from nodeagent.domain.container import Container
from nodeagent.domain.errors import OutsideFault
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.cgroup_effects import CGROUP, cgroup_in
from nodeagent.service.engines import Engines
from nodeagent.service.job_effects import in_job

log = structlog.get_logger()


class Gathering:
    """Moves only those that have the lease's own note among their mounts. *tree* None: there is no cgroup."""

    def __init__(
        self, ledger: Ledger, engines: Engines, mounts: LeaseMounts, tree: CgroupTree | None
    ) -> None:
        self._ledger = ledger
        self._engines = engines
        self._mounts = mounts
        self._tree = tree

    def look(self, held: Iterable[tuple[int, Container]]) -> None:
        """Gather for each lease with a container, in *held*, whose engine does not. Not into a job's own."""
        scattered = {lease for lease, container in held if self._engines.elsewhere(container)}
        if not scattered or self._tree is None:
            return
        of_lease = self._mounts.processes()
        for lease, journal in self._ledger.journals(sorted(scattered), (CGROUP,)).items():
            ref = None if any(in_job(one.arguments) for one in journal) else cgroup_in(journal)
            pids = [pid for pid, of in of_lease.items() if of == lease]
            if ref is None or not pids:
                continue
            try:
                with self._tree.open(ref) as cgroup:
                    self._gather(self._tree, cgroup, lease, pids)
            except (FileNotFoundError, OutsideFault) as fault:
                log.warning("a container's processes were not gathered", lease=lease, why=str(fault))

    def _gather(self, tree: CgroupTree, cgroup: OpenCgroup, lease: int, pids: Iterable[int]) -> None:
        for pid in pids:
            previous, started = tree.cgroup_of(pid), start_time_of(pid)
            if (
                started is None
                or f"{previous}/".startswith(f"{cgroup.path}/")
                or self._mounts.of(pid) != lease
            ):
                continue
            try:
                cgroup.move(pid)
            except ProcessLookupError:
                continue
            if start_time_of(pid) not in (None, started):  # the kernel moves by number: another has it by now
                _back(tree, pid, previous)


def _back(tree: CgroupTree, pid: int, previous: str | None) -> None:
    ref = tree.resolve(previous) if previous else None
    if ref is None:
        return
    try:
        with tree.open(ref) as cgroup:
            cgroup.move(pid)
    except (FileNotFoundError, ProcessLookupError):
        return
