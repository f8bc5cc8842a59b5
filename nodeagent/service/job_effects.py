"""The first tier's effects in a job's own cgroup, which Slurm makes, fills and ends, too.

In there the agent makes nothing below, never freezes, signals nobody while a slurmstepd lives, and removes
only what was not there before it. Slurm removes the directory whenever no step runs, and makes it anew with
the next step: `job_cgroups` then applies these effects again. A job id comes again, after a requeue or a
reboot, so a directory of the same name is not the lease's: path, inode and boot are on record.
"""

from __future__ import annotations

from typing import Any

from nodeagent.adapters.cgroup import CgroupRef, CgroupTree, OpenCgroup
from nodeagent.adapters.dmem import DmemController
from nodeagent.adapters.slurm import is_slurmstepd
from nodeagent.domain.clock import Clock
from nodeagent.domain.errors import OutsideFault, Vanished
from nodeagent.domain.guarantee import Memory
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.cgroup_effects import (
    CGROUP,
    Assurance,
    close_others,
    find,
    found,
    recorded,
    ref_of,
)
from nodeagent.service.effects import Arguments, Effect, Evidence, Pending
from nodeagent.service.grace import GracePeriods
from nodeagent.service.orders import NamedCgroup

_SAME = ("parent", "name", "boot_id")  # what two leases of one cgroup have in common


def job_home(tree: CgroupTree, home: NamedCgroup, clock: Clock) -> dict[str, Any]:
    """What the effects of a lease in *home* take, beside the lease; *existed*: it is Slurm's to remove."""
    existed = any(tree.resolve(f"{home.parent}/{name}") for name in (home.name, *home.also))
    return {
        "parent": home.parent,
        "name": home.name,
        "also": list(home.also),
        "boot_id": clock.boot_id,
        "existed": existed,
    }


def in_job(arguments: Arguments) -> bool:
    """Whether an effect of *arguments* is about a job's own cgroup."""
    return arguments.get("name") is not None


class ByHome(Effect):
    """Of two effects of one kind the one that the lease's home calls for."""

    def __init__(self, own: Effect, job: Effect) -> None:
        self._own = own
        self._job = job

    def apply(self, arguments: Arguments) -> Evidence:
        return self._of(arguments).apply(arguments)

    def verify(self, arguments: Arguments, evidence: Evidence) -> Evidence:
        return self._of(arguments).verify(arguments, evidence)

    def undo(self, arguments: Arguments, evidence: Evidence) -> Evidence | Pending:
        return self._of(arguments).undo(arguments, evidence)

    def _of(self, arguments: Arguments) -> Effect:
        return self._job if in_job(arguments) else self._own


class Heirs:
    """Says which other live lease has a job's cgroup by now, as after a requeue."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def of(self, arguments: Arguments) -> int | None:
        """The lease, or None. What is in the cgroup then cannot be told from what is that lease's."""
        others = [lease.id for lease in self._ledger.live() if lease.id != int(arguments["lease"])]
        for lease, journal in self._ledger.journals(others, kinds=(CGROUP,)).items():
            if any(all(one.arguments.get(name) == arguments[name] for name in _SAME) for one in journal):
                return lease
        return None


class JobCgroupEffect(Effect):
    """Makes the job's cgroup where Slurm has not yet, and removes it where nobody else would."""

    def __init__(self, tree: CgroupTree, clock: Clock, heirs: Heirs) -> None:
        self._tree = tree
        self._clock = clock
        self._heirs = heirs

    def apply(self, arguments: Arguments) -> Evidence:
        lease, parent = int(arguments["lease"]), arguments["parent"]
        there = find(self._tree, arguments)
        ref = there or self._tree.create(lease, parent, arguments["name"])
        for name in (arguments["name"], *arguments["also"]):
            other = self._tree.find(lease, parent, name)
            if other is not None and other != ref and not self._tree.populated(other):
                self._tree.remove(other)  # made before it was known how Slurm calls its jobs
        return {"path": ref.path, "inode": ref.inode, "made": there is None}

    def verify(self, arguments: Arguments, evidence: Evidence) -> Evidence:
        ref = ref_of(evidence)
        if ref is None or find(self._tree, arguments) != ref:
            raise Vanished(evidence.get("path", arguments["parent"]), "is not the job's cgroup any more")
        return {"exists": True}

    def undo(self, arguments: Arguments, evidence: Evidence) -> Evidence | Pending:
        ref = _recorded(self._tree, self._clock, arguments, evidence)
        if ref is None:
            return {"removed": "was gone"}
        heir = self._heirs.of(arguments)
        if heir is not None:
            return {"removed": f"is lease {heir}'s by now"}
        if arguments["existed"] and not evidence.get("made"):
            return {"removed": "is Slurm's"}
        if self._tree.populated(ref):
            return Pending(f"{ref.path}: still populated", alive=True)
        self._tree.remove(ref)
        return {"removed": True}


class JobOccupantsEffect(Effect):
    """Those who run in the job's cgroup: Slurm's to end as long as it is there, and then waited for.

    In a directory that was made anew they may be another run's: they are waited for, and never signalled.
    """

    def __init__(self, tree: CgroupTree, clock: Clock, heirs: Heirs, grace: GracePeriods) -> None:
        self._tree = tree
        self._clock = clock
        self._heirs = heirs
        self._grace = grace

    def apply(self, arguments: Arguments) -> Evidence:
        return found(self._tree, arguments)

    def verify(self, arguments: Arguments, evidence: Evidence) -> Evidence:
        return {}

    def undo(self, arguments: Arguments, evidence: Evidence) -> Evidence | Pending:
        if arguments["boot_id"] != self._clock.boot_id:
            return {"populated": "before the node was rebooted"}
        recorded, now = ref_of(evidence), find(self._tree, arguments)
        if now is None or not self._tree.populated(now):
            if recorded is not None:
                self._grace.forget(recorded)
            return {"populated": False}
        if now != recorded:
            return Pending(f"{now.path}: was made anew, and somebody runs there", alive=True)
        heir = self._heirs.of(arguments)
        if heir is not None:
            return Pending(f"{now.path}: who runs there cannot be told from lease {heir}'s", alive=True)
        try:
            with self._tree.open(now) as cgroup:
                return self._end(cgroup, int(arguments["lease"]))
        except FileNotFoundError:
            return {"populated": False}

    def _end(self, cgroup: OpenCgroup, lease: int) -> Pending:
        if any(is_slurmstepd(pid) for pid in cgroup.members()):
            return Pending(f"{cgroup.path}: Slurm has not ended the job's steps", alive=True)
        asked = self._grace.advance(cgroup, lease)
        if asked is not None:
            return Pending(f"{cgroup.path}: {asked}", patient=True, alive=True)
        cgroup.kill()
        return Pending(f"{cgroup.path}: processes are not gone yet", alive=True)


class JobDmemEffect(Effect):
    """dmem.max on the job's cgroup. A lower limit is Slurm's own (from 26.11) and stays: the smaller wins."""

    def __init__(
        self,
        tree: CgroupTree,
        dmem: DmemController,
        clock: Clock,
        heirs: Heirs,
        assurance: Assurance | None = None,
    ) -> None:
        self._tree = tree
        self._dmem = dmem
        self._clock = clock
        self._heirs = heirs
        self._assurance = assurance

    def apply(self, arguments: Arguments) -> Evidence:
        where = found(self._tree, arguments)
        ref = CgroupRef(str(where["path"]), int(where["inode"]))
        self._dmem.enable(ref.path)
        held = self._dmem.limits(ref)
        for region, limit_bytes in arguments["regions"].items():
            if not keeps_job(held.get(region), int(limit_bytes)):
                self._dmem.limit(ref, region, int(limit_bytes))
        close_others(self._dmem, ref, arguments["regions"], self._assurance)
        if self._assurance is not None:
            self._assurance.nested()
        return where

    def verify(self, arguments: Arguments, evidence: Evidence) -> Evidence:
        ref, regions = ref_of(evidence), arguments["regions"]
        held = self._dmem.limits(ref) if ref else {}
        for region, limit_bytes in regions.items():
            if not keeps_job(held.get(region), int(limit_bytes)):
                raise OutsideFault(region, f"dmem.max reads {held.get(region)}, {limit_bytes} was written")
        lower = [region for region, limit_bytes in regions.items() if held[region] != int(limit_bytes)]
        read = {"read_back": dict(held), "owner": dict.fromkeys(lower, "slurm")}
        holds = self._assurance is not None and self._assurance.why_not(regions) is None
        return {**read, "holds": {"memory": Memory.KERNEL}} if holds else read

    def undo(self, arguments: Arguments, evidence: Evidence) -> Evidence | Pending:
        ref = _recorded(self._tree, self._clock, arguments, evidence)
        if ref is None:
            # What is charged still is its parent's by now: the cards' own counters prove it gone.
            return {"current": "the job's cgroup is gone"}
        used, regions = self._dmem.current(ref), arguments["regions"]
        if charged := {region: used[region] for region in regions if used.get(region)}:
            return Pending(f"{ref.path}: VRAM is still charged: {charged}")
        if self._heirs.of(arguments) is None:
            held = self._dmem.limits(ref)
            for region, limit_bytes in regions.items():
                if held.get(region) == int(limit_bytes):
                    self._dmem.lift(ref, region)  # else a later lease takes it for Slurm's
        return {"current": 0}


def keeps_job(limit_bytes: int | None, wanted: int) -> bool:
    """Whether a job's limit keeps it to *wanted*. A 0 is the closure's, which holds jobs without leases."""
    return limit_bytes is not None and 0 < limit_bytes <= wanted


def _recorded(tree: CgroupTree, clock: Clock, arguments: Arguments, evidence: Evidence) -> CgroupRef | None:
    """The lease's cgroup, if that very one is still there."""
    if arguments["boot_id"] != clock.boot_id:
        return None
    ref = recorded(tree, arguments, evidence)
    return ref if tree.exists(ref) else None
