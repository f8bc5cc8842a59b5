"""The first tier's effects: the lease's cgroup, its VRAM limits, and those who run in it."""

from __future__ import annotations

from nodeagent.adapters.cgroup import CgroupRef, CgroupTree
from nodeagent.adapters.dmem import DmemController
from nodeagent.adapters.limits import Limits, apply
from nodeagent.adapters.processes import alive
from nodeagent.domain.clock import Clock
from nodeagent.domain.errors import OutsideFault
from nodeagent.service.effects import Arguments, Evidence, Pending

CGROUP, DMEM, OCCUPANTS, PROCESS, ADOPTED = "cgroup", "dmem", "occupants", "process", "adopted"


def ref_of(evidence: Evidence) -> CgroupRef | None:
    """The recorded cgroup: path and inode, never a path alone."""
    if "path" not in evidence:
        return None
    return CgroupRef(path=str(evidence["path"]), inode=int(evidence["inode"]))


class CgroupEffect:
    """Makes the lease's cgroup with the caller's own limits in it, and removes it when it is empty."""

    def __init__(self, tree: CgroupTree) -> None:
        self._tree = tree

    def apply(self, arguments: Arguments) -> Evidence:
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
        ref = ref_of(evidence) or self._tree.find(int(arguments["lease"]), arguments["parent"])
        if ref is None:
            return {"removed": "was never made"}
        try:
            with self._tree.open(ref) as cgroup:
                if cgroup.populated():
                    cgroup.kill()
                    return Pending(f"{ref.path}: still populated")
        except FileNotFoundError:
            return {"removed": "was gone"}
        try:
            self._tree.remove(ref)
        except OutsideFault as fault:
            return Pending(str(fault))
        return {"removed": True}


class OccupantsEffect:
    """Those who run in the lease's cgroup. Undone, they are killed and seen gone before anything else goes."""

    def __init__(self, tree: CgroupTree) -> None:
        self._tree = tree

    def apply(self, arguments: Arguments) -> Evidence:
        return {}

    def verify(self, arguments: Arguments, evidence: Evidence) -> Evidence:
        return {}

    def undo(self, arguments: Arguments, evidence: Evidence) -> Evidence | Pending:
        ref = self._tree.find(int(arguments["lease"]), arguments["parent"])
        if ref is None:
            return {"populated": False}
        try:
            with self._tree.open(ref) as cgroup:
                if not cgroup.populated():
                    return {"populated": False}
                cgroup.kill()
                left = cgroup.procs()
        except FileNotFoundError:
            return {"populated": False}
        return Pending(f"{ref.path}: processes {', '.join(map(str, left[:8])) or 'exiting'} are not gone yet")


class DmemEffect:
    """dmem.max and dmem.min on the lease's cgroup, once a region, set before anyone enters and read back."""

    def __init__(self, tree: CgroupTree, dmem: DmemController) -> None:
        self._tree = tree
        self._dmem = dmem

    def apply(self, arguments: Arguments) -> Evidence:
        ref = self._ref(arguments)
        self._dmem.enable(ref.path)
        for region, limit_bytes in arguments["regions"].items():
            self._dmem.limit(ref, region, int(limit_bytes))
        return {"limits": dict(arguments["regions"])}

    def verify(self, arguments: Arguments, evidence: Evidence) -> Evidence:
        held = self._dmem.limits(self._ref(arguments))
        for region, limit_bytes in arguments["regions"].items():
            if held.get(region) != limit_bytes:
                raise OutsideFault(region, f"dmem.max reads {held.get(region)}, {limit_bytes} was written")
        return {"read_back": {region: held[region] for region in arguments["regions"]}}

    def undo(self, arguments: Arguments, evidence: Evidence) -> Evidence | Pending:
        ref = self._tree.find(int(arguments["lease"]), arguments["parent"])
        if ref is None:
            return {"current": "the cgroup is gone"}
        charged = {
            region: used
            for region, used in self._dmem.current(ref).items()
            if used and region in arguments["regions"]
        }
        if charged:
            return Pending(f"{ref.path}: VRAM still charged: {charged}")
        return {"current": 0}

    def _ref(self, arguments: Arguments) -> CgroupRef:
        ref = self._tree.find(int(arguments["lease"]), arguments["parent"])
        if ref is None:
            raise OutsideFault(f"lease {arguments['lease']}", "its cgroup vanished before the limit was set")
        return ref


class ProcessEffect:
    """A holder without a cgroup of the lease: nothing to set, and the slice is held until it has ended.

    It is never signalled: the agent signals only inside a lease's cgroup (design 2.7).
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def apply(self, arguments: Arguments) -> Evidence:
        return {}

    def verify(self, arguments: Arguments, evidence: Evidence) -> Evidence:
        return {}

    def undo(self, arguments: Arguments, evidence: Evidence) -> Evidence | Pending:
        same_boot = arguments["boot_id"] == self._clock.boot_id
        if same_boot and alive(int(arguments["pid"]), int(arguments["start_time"])):
            return Pending(f"process {arguments['pid']} still runs; end it to free its slice")
        return {"process": "ended"}


class AdoptedEffect:
    """A cgroup that is not the agent's: watched until it is unpopulated, never killed, never removed."""

    def __init__(self, tree: CgroupTree) -> None:
        self._tree = tree

    def apply(self, arguments: Arguments) -> Evidence:
        return {}

    def verify(self, arguments: Arguments, evidence: Evidence) -> Evidence:
        return {}

    def undo(self, arguments: Arguments, evidence: Evidence) -> Evidence | Pending:
        ref = CgroupRef(path=str(arguments["path"]), inode=int(arguments["inode"]))
        try:
            with self._tree.open(ref) as cgroup:
                if cgroup.populated():
                    return Pending(f"{ref.path}: adopted and still populated; end it to free its slice")
        except FileNotFoundError:
            pass
        return {"populated": False}
