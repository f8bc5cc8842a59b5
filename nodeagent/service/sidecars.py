"""Keeps beside the ledger what it would take to rebuild it, and rebuilds leases that it lost."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import structlog

from nodeagent.adapters.cgroup import CgroupRef, CgroupTree
from nodeagent.adapters.processes import alive
from nodeagent.adapters.sidecar_files import SidecarFiles
from nodeagent.domain.clock import Clock
from nodeagent.domain.errors import AgentError, IllegalMove, LedgerConflict, OutsideFault
from nodeagent.domain.reconcile import SeenSidecar
from nodeagent.ledger.ledger import Ledger
from nodeagent.ledger.sidecar import Mark, Sidecar, sidecar_of
from nodeagent.service.cgroup_effects import ADOPTED, CGROUP, PROCESS, ref_of

log = structlog.get_logger()


class Sidecars:
    """One file for each lease that holds something. *tree* is None where cgroups cannot be looked at."""

    def __init__(self, files: SidecarFiles, ledger: Ledger, clock: Clock, tree: CgroupTree | None) -> None:
        self._files = files
        self._ledger = ledger
        self._clock = clock
        self._tree = tree
        self._lock = threading.Lock()
        self._marks: dict[int, Mark] = {}  # of the files, as far as known
        self._refused: dict[int, str] = {}

    def leases(self) -> frozenset[int]:
        """Those that have a sidecar."""
        return self._files.leases()

    def clear(self) -> None:
        """Take away what a death left half written. Not while anybody writes."""
        self._files.clear()

    def leave(self) -> None:
        """Take the directory away, if there are none."""
        self._files.leave()

    def wanted(self) -> Mapping[int, Mark]:
        """Those that shall have one, with the mark of one that says what the ledger says."""
        if self._files.unavailable() or not self._ledger.present():
            return {}
        return self._ledger.sidecar_marks()

    def outdated(self, wanted: Mapping[int, Mark], present: frozenset[int]) -> frozenset[int]:
        """Those of *wanted* that have none, or one of before."""
        return frozenset(
            lease for lease, mark in wanted.items() if lease not in present or self._mark(lease) != mark
        )

    def keep(self, lease: int) -> None:
        """Write the sidecar of a lease before that is answered. Where it fails, reconcile makes up for it."""
        if self._files.unavailable() is None:
            try:
                self.write(lease)
            except (AgentError, OSError) as fault:
                log.warning("a sidecar was not written", lease=lease, why=str(fault))

    def write(self, lease: int) -> bool:
        """Write what the ledger says now; False: the lease shall have none any more."""
        with self._lock:
            sidecar = self._ledger.sidecar(lease)
            if sidecar is None:
                return False
            self._files.write(lease, sidecar.to_json())
            self._marks[lease] = sidecar.mark
            return True

    def remove(self, lease: int) -> bool:
        with self._lock:
            self._marks.pop(lease, None)
            self._refused.pop(lease, None)
            return self._files.remove(lease)

    def lost(self, leases: Collection[int]) -> frozenset[int]:
        """Those of *leases*, unknown to the ledger, that it never had: ids only grow, so the others ended."""
        high_water = self._ledger.high_water() if leases else 0
        return frozenset(lease for lease in leases if lease > high_water or lease in self._refused)

    def seen(self, lease: int) -> SeenSidecar:
        """What there is to say of the sidecar of a lease that the ledger has lost."""
        path = str(self._files.path(lease))
        try:
            sidecar = self._read(lease)
            there, in_use = self._there(sidecar), self._in_use(sidecar)
        except (OutsideFault, LedgerConflict, FileNotFoundError) as fault:
            return SeenSidecar(path, broken=str(fault))
        this_boot = sidecar.boot_id == self._clock.boot_id
        return SeenSidecar(path, None, this_boot, there, in_use, self._refused.get(lease))

    def rebuild(self, lease: int) -> bool:
        """Put the lease back into the ledger. Raises what `Transaction.rebuild` does."""
        sidecar = self._read(lease)
        try:
            with self._ledger.write(release=True) as tx:
                tx.rebuild(sidecar)
        except (LedgerConflict, IllegalMove) as fault:
            self._refused[lease] = str(fault)
            raise
        self._refused.pop(lease, None)
        return True

    def _mark(self, lease: int) -> Mark | None:
        if lease not in self._marks:
            try:
                self._marks[lease] = self._read(lease).mark
            except (OutsideFault, LedgerConflict, FileNotFoundError):
                return None
        return self._marks[lease]

    def _read(self, lease: int) -> Sidecar:
        return sidecar_of(lease, self._files.read(lease))

    def _there(self, sidecar: Sidecar) -> bool:
        """Whether the lease's own cgroup is the one that was made for it, as far as can be told."""
        refs = [_ref(evidence) for kind, _, evidence in sidecar.effects() if kind == CGROUP]
        return self._tree is None or all(self._tree.exists(ref) for ref in refs)

    def _in_use(self, sidecar: Sidecar) -> bool:
        return any(self._runs(sidecar))

    def _runs(self, sidecar: Sidecar) -> Iterator[bool]:
        for kind, arguments, evidence in sidecar.effects():
            if kind == PROCESS:
                yield alive(_number(arguments, "pid"), _number(arguments, "start_time"))
            elif kind in (CGROUP, ADOPTED) and self._tree is not None:
                ref = _ref(evidence if kind == CGROUP else arguments)
                yield self._tree.populated(ref)


def _ref(told: Mapping[str, Any]) -> CgroupRef | None:
    try:
        return ref_of(told)
    except (KeyError, TypeError, ValueError) as fault:
        raise LedgerConflict(f"names no cgroup: {fault!r}") from None


def _number(told: Mapping[str, Any], name: str) -> int:
    number = told.get(name)
    if not isinstance(number, int):
        raise LedgerConflict(f"{name}: {number!r} is no number")
    return number
