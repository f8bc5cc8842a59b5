"""Looks for what differs between node and ledger, takes the actions that the plan names, and looks again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Protocol

import structlog

from nodeagent.adapters.cgroup import CgroupRef, CgroupTree
from nodeagent.adapters.systemd import Systemd
from nodeagent.domain.clock import SECOND_NS, Clock
from nodeagent.domain.errors import AgentError, LedgerUnavailable
from nodeagent.domain.lease import LeaseState
from nodeagent.domain.reconcile import Action, SeenCgroup, Snapshot, Step, plan
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.cgroup_effects import CGROUP, cgroup_in
from nodeagent.service.sidecars import Sidecars

log = structlog.get_logger()

UNITS_SECONDS = 60  # between two looks at systemd's units, for which a program is started
ROUTINE = frozenset({Action.WRITE_SIDECAR, Action.REMOVE_SIDECAR})  # done for each lease: no events
_RUNS = frozenset({LeaseState.PREPARING, LeaseState.ACTIVE})
_BEFORE_ALL_RUN = frozenset({Action.REBUILD_LEASE, Action.THAW_CGROUP})  # a rebuilt lease may be frozen, too
UNSEEN = "the node was not compared with the ledger yet"


class LeaseFiles(Protocol):
    """Files that effects make, some for each lease."""

    def leases(self) -> frozenset[int]:
        """Those that have any, half made ones too. Raises OutsideFault."""

    def remove(self, lease: int, /) -> None:
        """Take away what there is. Raises OutsideFault."""


class Differences:
    """Each difference is told when it is new, and again when its action did not take; not at every look.

    *tree* is None where no cgroups can be made, *systemd* beside another init.
    """

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        tree: CgroupTree | None,
        systemd: Systemd | None,
        files: Sequence[LeaseFiles],
        sidecars: Sidecars,
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._tree = tree
        self._systemd = systemd
        self._files = tuple(files)
        self._sidecars = sidecars
        self._units_ns: int | None = None
        self._nested: dict[int, CgroupRef] | None = None  # of no known lease, where a start found them
        self._told: dict[tuple[Action, int], str] = {}
        # Only what a start finds is a release's doing: who freezes a live lease later means it.
        self._look_for_frozen = True
        self._strangers: tuple[str, ...] = (UNSEEN,)
        self._takes: Mapping[Action, Callable[[int], bool]] = {
            Action.REBUILD_LEASE: sidecars.rebuild,
            Action.THAW_CGROUP: self._thaw,
            Action.WRITE_SIDECAR: sidecars.write,
            Action.REMOVE_SIDECAR: sidecars.remove,
            Action.STOP_UNIT: self._stop_unit,
            Action.REMOVE_CGROUP: self._remove_cgroup,
            Action.REMOVE_FILES: self._remove_files,
        }

    def strangers(self) -> tuple[str, ...]:
        """Why grants stop: somebody may be using what the ledger takes for free."""
        return self._strangers

    def look(self) -> bool:
        """Compare, act, and compare again; whether a lease was rebuilt.

        Raises OutsideFault or LedgerUnavailable where it cannot.
        """
        units = self._units_due()
        first = steps = plan(self._snapshot(units))
        self._strangers = _in_doubt(steps)
        faults: dict[Step, str] = {}
        done = [step for step in steps if self._take(step, faults)]
        if any(step.action in self._takes for step in steps):
            steps = plan(self._snapshot(units))
        taken = [step for step in done if step not in steps]
        self._look_for_frozen = any(step.action in _BEFORE_ALL_RUN for step in (*steps, *taken))
        # What came about meanwhile was not tried: it is the next look's.
        self._tell([step for step in steps if step in first or step.action not in self._takes], faults)
        self._strangers = _in_doubt(steps)
        self._note([step for step in taken if step.action not in ROUTINE])
        return any(step.action is Action.REBUILD_LEASE for step in taken)

    def clear(self) -> None:
        """Take away what a death left half written. For the start: later, somebody may be writing."""
        self._sidecars.clear()

    def _units_due(self) -> bool:
        now = self._clock.boot_ns()
        if self._units_ns is not None and now - self._units_ns < UNITS_SECONDS * SECOND_NS:
            return False
        self._units_ns = now
        return True

    def _snapshot(self, units: bool) -> Snapshot:
        cgroups = {**self._nested_ones(), **(self._tree.existing() if self._tree else {})}
        running = self._units() if units else frozenset()
        filed, sidecars = self._filed(), self._sidecars.leases()
        known, wanted = self._known({*cgroups, *running, *filed, *sidecars}), self._sidecars.wanted()
        lost = self._sidecars.lost(sidecars - known)
        self._nested = {lease: ref for lease, ref in self._nested_ones().items() if lease not in known}
        return Snapshot(
            known=known,
            cgroups={lease: self._seen(ref) for lease, ref in cgroups.items() if lease not in known},
            units=running,
            filed=filed,
            sidecars=sidecars,
            outdated=self._sidecars.outdated(wanted, sidecars),
            wanted=frozenset(wanted),
            forgotten={lease: self._sidecars.seen(lease) for lease in lost},
            frozen=self._frozen(cgroups) if self._look_for_frozen else {},
        )

    def _nested_ones(self) -> dict[int, CgroupRef]:
        """Cgroups below others' that may be a lost ledger's: looked for once, seen until they are gone."""
        if self._tree is None:
            return {}
        if self._nested is None:
            self._nested = dict(self._tree.nested())
        return {lease: ref for lease, ref in self._nested.items() if self._tree.exists(ref)}

    def _filed(self) -> frozenset[int]:
        return frozenset().union(*(files.leases() for files in self._files))

    def _known(self, seen: Set[int]) -> frozenset[int]:
        """Leases that may have things. What is left of one that failed matters only where it was *seen*."""
        present = self._ledger.present()
        return present if seen <= present else present | self._ledger.unfinished()

    def _frozen(self, cgroups: Mapping[int, CgroupRef]) -> dict[int, str]:
        """Of the leases that are to run, those that cannot."""
        running = [lease.id for lease in self._ledger.live() if lease.state in _RUNS]
        made = self._ledger.journals(running, (CGROUP,))
        tree, refs = self._tree, {lease: cgroup_in(made[lease]) or cgroups.get(lease) for lease in running}
        return {lease: ref.path for lease, ref in refs.items() if ref and tree and tree.frozen(ref)}

    def _own(self, lease: int) -> CgroupRef | None:
        return cgroup_in(self._ledger.effects(lease))

    def _units(self) -> frozenset[int]:
        if self._tree is None or self._systemd is None:
            return frozenset()
        names = self._systemd.slices(self._tree.names)
        return frozenset(lease for name in names if (lease := self._tree.lease_of(name)) is not None)

    def _seen(self, ref: CgroupRef) -> SeenCgroup:
        return SeenCgroup(ref.path, ref.inode, self._tree is not None and self._tree.populated(ref))

    def _take(self, step: Step, faults: dict[Step, str]) -> bool:
        """Whether anything was done; why it could not be goes into *faults*.

        A ledger that takes nothing now ends the look: leases go back by their ids, or not at all.
        """
        take = self._takes.get(step.action)
        try:
            return take is not None and take(step.lease)
        except LedgerUnavailable:
            raise
        except (AgentError, OSError) as fault:
            faults[step] = str(fault)
            return False

    def _note(self, done: Sequence[Step]) -> None:
        if not done:
            return
        with self._ledger.write(release=True) as tx:
            for step in done:
                data = {"action": step.action}
                tx.event("reconciled", uid=None, lease=step.lease, reason=step.why, data=data)
                log.info("reconciled", action=step.action, lease=step.lease, why=step.why)

    def _tell(self, steps: Sequence[Step], faults: Mapping[Step, str]) -> None:
        """Log what stays different, once."""
        now = {(step.action, step.lease): faults.get(step, step.why) for step in steps}
        for step in steps:
            told = now[step.action, step.lease]
            if self._told.get((step.action, step.lease)) == told:
                continue
            if step.action in self._takes:
                log.error("an action did not take", action=step.action, lease=step.lease, why=told)
            else:
                log.warning("the node differs from the ledger", action=step.action, why=told)
        for action, lease in self._told.keys() - now.keys():
            log.info("a difference is gone", action=action, lease=lease)
        self._told = now

    # -- the actions: each says whether there was anything to do ------------------------------------

    def _thaw(self, lease: int) -> bool:
        ref = self._own(lease) or (self._tree.find(lease) if self._tree else None)
        now = self._ledger.lease(lease)
        if self._tree is None or ref is None or now is None or now.state not in _RUNS:
            return False
        with self._tree.open(ref) as cgroup:
            cgroup.thaw()
        return True

    def _stop_unit(self, lease: int) -> bool:
        if self._tree is None or self._systemd is None or self._tree.populated(self._tree.find(lease)):
            return False  # systemd would end who came in meanwhile
        self._systemd.stop(self._tree.name(lease))
        return True

    def _remove_cgroup(self, lease: int) -> bool:
        ref = self._nested_ones().get(lease) or (self._tree.find(lease) if self._tree else None)
        if self._tree is None or ref is None:
            return False
        self._tree.remove(ref)
        return True

    def _remove_files(self, lease: int) -> bool:
        there = [files for files in self._files if lease in files.leases()]
        for files in there:
            files.remove(lease)
        return bool(there)


def _in_doubt(steps: Sequence[Step]) -> tuple[str, ...]:
    return tuple(step.why for step in steps if step.stops_grants)
