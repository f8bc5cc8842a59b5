"""The first tier's effects: the lease's cgroup, its VRAM limits, and those who run in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Protocol

from nodeagent.adapters.cgroup import CgroupRef, CgroupTree
from nodeagent.adapters.dmem import DmemController
from nodeagent.adapters.limits import Limits, apply
from nodeagent.adapters.processes import alive
from nodeagent.adapters.systemd import Systemd
from nodeagent.domain.clock import Clock
from nodeagent.domain.errors import OutsideFault, Vanished
from nodeagent.domain.guarantee import Memory
from nodeagent.domain.records import EffectRecord
from nodeagent.service.effects import Arguments, Evidence, Pending, WaitInBoot
from nodeagent.service.grace import Grace, GracePeriods

CGROUP, DMEM, OCCUPANTS, PROCESS, ADOPTED = "cgroup", "dmem", "occupants", "process", "adopted"
_HOME = ("lease", "parent", "name", "also", "boot_id")


def ref_of(evidence: Evidence) -> CgroupRef | None:
    """The recorded cgroup: path and inode, never a path alone."""
    if "path" not in evidence:
        return None
    return CgroupRef(path=str(evidence["path"]), inode=int(evidence["inode"]))


def cgroup_in(journal: Iterable[EffectRecord]) -> CgroupRef | None:
    """The cgroup that was made for the lease of *journal*; None where none was, or none yet."""
    return next((ref_of(record.evidence or {}) for record in journal if record.kind == CGROUP), None)


def home_of(arguments: Arguments) -> dict[str, Any]:
    """Where the lease's cgroup is, from the arguments of its first effect: for those that follow."""
    return {name: arguments[name] for name in _HOME if name in arguments}


def find(tree: CgroupTree, arguments: Arguments) -> CgroupRef | None:
    """The cgroup that an effect of *arguments* is about, by its name: of several the one that is in use."""
    names = (arguments.get("name"), *arguments.get("also", ()))
    lease, parent = int(arguments["lease"]), arguments["parent"]
    refs = [ref for name in names if (ref := tree.find(lease, parent, name)) is not None]
    used = (ref for ref in refs[1:] if tree.populated(ref)) if len(refs) > 1 else ()
    return next(iter(used), refs[0] if refs else None)


def recorded(tree: CgroupTree, arguments: Arguments, evidence: Evidence) -> CgroupRef | None:
    """The lease's cgroup, by name where the journal does not know it.

    That is so after a crash, when nobody can be in it, and after the restore of a backup from before the
    lease was active, when somebody can.
    """
    return ref_of(evidence) or find(tree, arguments)


def found(tree: CgroupTree, arguments: Arguments) -> Evidence:
    """Path and inode of the cgroup that the lease's first effect has just made."""
    ref = find(tree, arguments)
    if ref is None:
        raise Vanished(f"cgroup of lease {arguments['lease']}", "vanished while the lease was prepared")
    return {"path": ref.path, "inode": ref.inode}


class CgroupEffect:
    """Makes the lease's cgroup with the caller's own limits in it, and removes it when it is empty.

    In the instance's own subtree by way of *systemd*, where that runs the node: else PID 1 would make the
    slice's unit, and end it, without our knowing.
    """

    def __init__(self, tree: CgroupTree, systemd: Systemd | None = None) -> None:
        self._tree = tree
        self._systemd = systemd

    def apply(self, arguments: Arguments) -> Evidence:
        if self._systemd is not None and arguments["parent"] is None:
            self._systemd.start(self._tree.name(int(arguments["lease"])))
        ref = self._tree.create(int(arguments["lease"]), arguments["parent"])
        apply(self._tree, ref, Limits.from_json(arguments["limits"]))
        return {"path": ref.path, "inode": ref.inode}

    def verify(self, arguments: Arguments, evidence: Evidence) -> Evidence:
        ref = ref_of(evidence)
        if ref is None:
            raise OutsideFault("journal", "a cgroup without its path: the journal was edited")
        with self._tree.open(ref):
            return {"exists": True}

    def undo(self, arguments: Arguments, evidence: Evidence) -> Evidence | Pending:
        ref = recorded(self._tree, arguments, evidence)
        if ref is None:
            return {"removed": "was never made"}
        try:
            with self._tree.open(ref) as cgroup:
                if cgroup.populated():
                    cgroup.kill()
                    return Pending(f"{ref.path}: still populated", alive=True)
        except FileNotFoundError:
            return {"removed": "was gone"}
        try:
            if self._systemd is not None and arguments["parent"] is None:
                self._systemd.stop(self._tree.name(int(arguments["lease"])))
            self._tree.remove(ref)
        except OutsideFault as fault:
            return Pending(str(fault))
        return {"removed": True}


class OccupantsEffect:
    """Those who run in the lease's cgroup: asked to end, killed, seen gone before anything else is undone."""

    def __init__(self, tree: CgroupTree, grace: GracePeriods | None = None) -> None:
        self._tree = tree
        self._grace = grace or GracePeriods(Grace())

    def apply(self, arguments: Arguments) -> Evidence:
        return found(self._tree, arguments)

    def verify(self, arguments: Arguments, evidence: Evidence) -> Evidence:
        return {}

    def undo(self, arguments: Arguments, evidence: Evidence) -> Evidence | Pending:
        ref = recorded(self._tree, arguments, evidence)
        if ref is None:
            return {"populated": "nobody could enter yet"}
        try:
            with self._tree.open(ref) as cgroup:
                if not cgroup.populated():
                    # A supervisor whose agent died may still start its command in here: it is to touch no GPU
                    # between the proofs that follow and the cgroup's end.
                    cgroup.freeze()
                populated, asked = cgroup.populated(), None
                if populated:
                    asked = self._grace.advance(cgroup, int(arguments["lease"]))
                    if asked is None:
                        cgroup.kill()
                left = cgroup.procs()
        except FileNotFoundError:
            populated = False
        if not populated:
            self._grace.forget(ref)
            return {"populated": False}
        if asked is not None:
            return Pending(f"{ref.path}: {asked}", patient=True, alive=True)
        return Pending(
            f"{ref.path}: processes {', '.join(map(str, left[:8])) or 'exiting'} are not gone yet", alive=True
        )


class Assurance(Protocol):
    """What is known of the node beside one lease's cgroup: see `kernel_tier`."""

    def why_not(self, regions: Iterable[str]) -> str | None:
        """Why limits of *regions* do not hold against everybody; None: they do."""

    def closed(self) -> frozenset[str]:
        """The regions of which nothing is to be had but by a lease of them."""

    def nested(self) -> None:
        """A lease began below a cgroup that the closure holds: what it holds there has changed."""


def close_others(
    dmem: DmemController, ref: CgroupRef, regions: Iterable[str], assurance: Assurance | None
) -> None:
    """Give the lease's cgroup nothing of the closed regions that are not among its own.

    Else it would be the one place from which all other GPUs can be had. The closure keeps this up, and lets
    leases that are nested in it through.
    """
    others = assurance.closed().difference(regions) if assurance else frozenset()
    held = dmem.limits(ref) if others else {}
    for region in sorted(others):
        if held.get(region) is None:
            dmem.cap(ref, region, 0)


class DmemEffect:
    """dmem.max and dmem.min on the lease's cgroup, once a region, set before anyone enters and read back.

    *Shared*: the lease is nested beside its job's own processes, and the closure holds both as one.
    """

    def __init__(self, tree: CgroupTree, dmem: DmemController, assurance: Assurance | None = None) -> None:
        self._tree = tree
        self._dmem = dmem
        self._assurance = assurance

    def apply(self, arguments: Arguments) -> Evidence:
        where = found(self._tree, arguments)
        if not arguments.get("shared"):
            ref = CgroupRef(str(where["path"]), int(where["inode"]))
            self._dmem.enable(ref.path)
            for region, limit_bytes in arguments["regions"].items():
                self._dmem.limit(ref, region, int(limit_bytes))
            close_others(self._dmem, ref, arguments["regions"], self._assurance)
        if arguments["parent"] is not None and self._assurance is not None:
            self._assurance.nested()
        return where

    def verify(self, arguments: Arguments, evidence: Evidence) -> Evidence:
        regions = arguments["regions"]
        ref = self._tree.resolve(arguments["parent"]) if arguments.get("shared") else ref_of(evidence)
        held = self._dmem.limits(ref) if ref else {}
        for region, limit_bytes in regions.items():
            limit = held.get(region)
            # A shared one is the sum of all the job's leases.
            if limit is None or (limit < limit_bytes if arguments.get("shared") else limit != limit_bytes):
                raise OutsideFault(region, f"dmem.max reads {limit}, {limit_bytes} was written")
        read = {"read_back": dict(held)}
        return {**read, "holds": {"memory": Memory.KERNEL}} if self._holds(regions) else read

    def undo(self, arguments: Arguments, evidence: Evidence) -> Evidence | Pending:
        if arguments.get("shared"):
            return {"current": "counted in the job's own cgroup"}
        ref = recorded(self._tree, arguments, evidence)
        used = self._dmem.current(ref) if ref else {}
        charged = {region: used[region] for region in arguments["regions"] if used.get(region)}
        if ref and charged:
            return Pending(f"{ref.path}: VRAM is still charged: {charged}")
        return {"current": 0}

    def _holds(self, regions: Iterable[str]) -> bool:
        return self._assurance is not None and self._assurance.why_not(regions) is None


class ProcessEffect(WaitInBoot):
    """A holder outside every cgroup of ours, which the agent therefore never signals.

    Strict, for one that was adopted or attached: the slice is held until it has ended. Else, for one that
    merely took the lease: until it has ended or has no GPU open.
    """

    rebooted: ClassVar[Evidence] = {"process": "ended"}

    def __init__(self, clock: Clock, gpu_in_use: Callable[[int], bool]) -> None:
        super().__init__(clock)
        self._gpu_in_use = gpu_in_use

    def wait(self, arguments: Arguments) -> Evidence | Pending:
        pid = int(arguments["pid"])
        if not alive(pid, int(arguments["start_time"])):
            return {"process": "ended"}
        if arguments["strict"] or self._gpu_in_use(pid):
            return Pending(f"process {pid} still runs; end it to free its slice", alive=True)
        return {"process": "has no GPU open"}


class AdoptedEffect(WaitInBoot):
    """A cgroup that is not the agent's: watched until it is unpopulated, never killed, never removed."""

    # Path and inode may mean another one now.
    rebooted: ClassVar[Evidence] = {"populated": "before the node was rebooted"}

    def __init__(self, tree: CgroupTree, clock: Clock) -> None:
        super().__init__(clock)
        self._tree = tree

    def wait(self, arguments: Arguments) -> Evidence | Pending:
        ref = CgroupRef(path=str(arguments["path"]), inode=int(arguments["inode"]))
        if self._tree.populated(ref):
            return Pending(f"{ref.path}: adopted and still populated; end it to free its slice", alive=True)
        return {"populated": False}
