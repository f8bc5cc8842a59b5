"""A lease's shared memory: gathers what is known of it, has it judged, and removes what is proved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.ipc import IpcSpace
from nodeagent.adapters.ipc_users import IpcUsers
from nodeagent.adapters.processes import TICK_NS, start_time_of
from nodeagent.domain.clock import SECOND_NS, Clock
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.guarantee import Ipc
from nodeagent.domain.ipc import CLOCK_STEP_SECONDS, Reason, Scene, Users, Verdict, judge
from nodeagent.domain.lease import ENDED, AnchorKind, HolderKind, Lease, LeaseState
from nodeagent.domain.records import EffectState
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.census import Census
from nodeagent.service.cgroup_effects import found
from nodeagent.service.effects import Arguments, Evidence

IPC = "ipc"
OWN = "it has shared memory of its own, which ends with its last process"
NOT_REMOVED = "nothing of this lease is removed: see the tier ipc"
MOST_SHOWN = 500  # objects in one answer
MOST_BEFORE = 1024  # objects that a uid may have when its lease begins, to be told from later ones


@dataclass(frozen=True, slots=True)
class Left:
    """What becomes of a lease's shared memory; *ended*: what has become. *note*: what is not told."""

    lease: int
    ended: bool
    objects: Sequence[Mapping[str, Any]]  # see `described`
    note: str | None = None


class SharedMemory:
    """What the uid of a lease has there. Nothing goes unless the lease alone can have made it."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        tree: CgroupTree,
        census: Census,
        space: IpcSpace,
        users: IpcUsers,
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._tree = tree
        self.census = census
        self._space = space
        self._users = users

    def begin(self, arguments: Arguments) -> Evidence:
        """What is there before anyone enters the lease, and when that was."""
        listing = self._space.find(int(arguments["uid"]))
        few = listing.complete and len(listing.found) <= MOST_BEFORE
        return {
            **found(self._tree, arguments),
            "boot_id": self._clock.boot_id,
            "since_ns": self._clock.boot_ns(),
            "wall": self._clock.wall(),
            "before": [one.token for one in listing.found] if few else None,
        }

    def judged(self, lease_id: int, uid: int, evidence: Evidence) -> tuple[Verdict, ...]:
        """Every object of *uid*, and whether it would go if the lease ended as things stand now."""
        listing = self._space.find(uid)
        scene = self._scene(lease_id, uid, evidence)
        if not listing.complete:
            scene = replace(scene, before=None)
        first = [judge(one, scene) for one in listing.found]
        going = [verdict.found for verdict in first if verdict.removes]
        if not going:
            return tuple(first)
        users = self._users.of(uid, going, self._space.device(), self._inside(lease_id, evidence))
        scene = replace(scene, users=users)
        return tuple(judge(one, scene) for one in listing.found)

    def clear(self, lease_id: int, uid: int, evidence: Evidence) -> tuple[Verdict, ...]:
        """Remove what is proved; every object of *uid*, and what became of it."""
        if evidence["boot_id"] != self._clock.boot_id:
            return ()  # no shared memory outlives a boot
        return tuple(
            self._removed(one) if one.removes else one for one in self.judged(lease_id, uid, evidence)
        )

    def view(self, lease: Lease) -> Left:
        """What `clear` would do now, or did."""
        record = next((one for one in self._ledger.effects(lease.id) if one.kind == IPC), None)
        if record is None:
            private = lease.guarantee is not None and lease.guarantee.ipc is Ipc.PRIVATE
            return Left(lease.id, lease.state in ENDED, (), OWN if private else NOT_REMOVED)
        evidence: Evidence = record.evidence or {}
        if record.state is EffectState.UNDONE:
            return _of_ended(lease.id, evidence)
        if "since_ns" not in evidence:
            return Left(lease.id, False, (), "nobody could enter it yet")
        verdicts = self.judged(lease.id, lease.holder.uid, evidence)
        shown = sorted(verdicts, key=lambda one: (not one.removes, not one.in_doubt))[:MOST_SHOWN]
        return Left(lease.id, False, [described(one) for one in shown], _unlisted(len(verdicts), len(shown)))

    def _removed(self, verdict: Verdict) -> Verdict:
        try:
            if self._space.remove(verdict.found):
                return verdict
        except OutsideFault as fault:
            return Verdict(verdict.found, Reason.CHANGED, str(fault))
        return Verdict(verdict.found, Reason.CHANGED, "it changed while it was looked at")

    def _scene(self, lease_id: int, uid: int, evidence: Evidence) -> Scene:
        since_ns = int(evidence["since_ns"])
        offset = self._clock.wall() - self._clock.boot_ns() / SECOND_NS  # changed by steps of the clock only
        was = float(evidence["wall"]) - since_ns / SECOND_NS
        before = evidence["before"]
        others = self._others(lease_id, uid)
        return Scene(
            uid=uid,
            since=since_ns / SECOND_NS + offset,
            before=None if before is None else frozenset(before),
            clock_set=abs(offset - was) > CLOCK_STEP_SECONDS,
            lives=self.census.lives(lease_id),
            namespaces=self.census.namespaces(lease_id),
            others=others,
            elsewhere=[life for other in others for life in self.census.lives(other)],
            users=Users(),
        )

    def _others(self, lease_id: int, uid: int) -> list[int]:
        live = {
            one.id
            for one in self._ledger.live()
            if one.holder.uid == uid and one.state is not LeaseState.QUEUED
        }
        held = {one.lease for one in self._ledger.held() if one.uid == uid}
        return sorted((live | held) - {lease_id})

    def _inside(self, lease_id: int, evidence: Evidence) -> Callable[[int], bool]:
        """Whether a process is the lease's: in its cgroup, or the one that took it for what is in there."""
        path, lease = str(evidence["path"]), self._ledger.lease(lease_id)
        wrapper = None if lease is None else wrapper_of(lease)

        def inside(pid: int) -> bool:
            at = self._tree.cgroup_of(pid)
            return pid == wrapper or (at is not None and f"{at}/".startswith(f"{path}/"))

        return inside


def _of_ended(lease_id: int, evidence: Evidence) -> Left:
    objects = evidence.get("objects", ())
    found = evidence.get("removed", 0) + evidence.get("left", 0) if objects else 0
    return Left(lease_id, True, objects, evidence.get("fault") or _unlisted(found, len(objects)))


def _unlisted(found: int, shown: int) -> str | None:
    return f"{found - shown} more are not listed" if found > shown else None


def described(verdict: Verdict) -> Mapping[str, Any]:
    """One object and what becomes of it, for the journal and the API."""
    found = verdict.found
    return {
        "kind": str(found.kind),
        "name": found.shown[:64],
        "size_bytes": found.size_bytes,
        "goes": verdict.removes,
        "reason": str(verdict.reason),
        "why": verdict.detail,
    }


def wrapper_of(lease: Lease) -> int | None:
    """The process that took *lease* for a cgroup's life, as `gpulease run` does, if that still is the same.

    One that ran before the lease began has had its pid ever since.
    """
    if lease.holder.kind is not HolderKind.PROCESS or lease.anchor.kind is not AnchorKind.CGROUP:
        return None
    pid = int(lease.holder.id)
    start_time = start_time_of(pid)
    return pid if start_time is not None and start_time * TICK_NS <= lease.created_ns else None
