"""The census: which processes ran in each lease. In memory only: what a restart forgets proves nothing."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from nodeagent.adapters.cgroup import CgroupRef, CgroupTree
from nodeagent.adapters.ipc_users import other_namespace, other_shm
from nodeagent.adapters.processes import TICK_NS, start_time_of
from nodeagent.domain.clock import SECOND_NS, Clock
from nodeagent.domain.ipc import Kind, Life
from nodeagent.domain.lease import LeaseState
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.cgroup_effects import CGROUP, cgroup_in

MOST_LIVES = 4096  # of one lease: beyond, those that ended first are forgotten
_RUNS = frozenset({LeaseState.ACTIVE, LeaseState.LOST, LeaseState.RELEASING})


@dataclass(slots=True)
class _Seen:
    began_ns: int
    ended_ns: int | None = None


@dataclass(slots=True)
class _Roll:
    """One lease's: by pid and start time, in the order in which they were seen."""

    seen: dict[tuple[int, int], _Seen] = field(default_factory=dict)
    here: dict[int, tuple[int, int]] = field(default_factory=dict)  # those of the last look
    namespaces: set[Kind] = field(default_factory=set)
    closely_ns: int = 0  # when it was last looked at closely


class Census:
    """Sees who is in the cgroups of leases. What comes and goes between two looks is not seen.

    A pid counts as its process's until the look that misses it: pids are not given again as fast as that.
    """

    def __init__(self, ledger: Ledger, clock: Clock, tree: CgroupTree, shm: int | None) -> None:
        self._ledger = ledger
        self._clock = clock
        self._tree = tree
        self._shm = shm  # the device number of the agent's own /dev/shm
        self._lock = threading.Lock()
        self._rolls: dict[int, _Roll] = {}
        self._refs: dict[int, CgroupRef | None] = {}
        # All leases' cgroups: who is in a nested one is not the outer's.
        self._paths: frozenset[str] = frozenset()

    def look(self) -> None:
        """See every lease, and forget those that hold nothing any more."""
        live, known = self._ledger.live(), self._ledger.present()
        with self._lock:
            self._rolls = {lease: roll for lease, roll in self._rolls.items() if lease in known}
        self._refs = {lease: ref for lease, ref in self._refs.items() if lease in known}
        runs = [lease.id for lease in live if lease.state in _RUNS]
        new = self._ledger.journals((lease for lease in runs if lease not in self._refs), (CGROUP,))
        self._refs |= {lease: cgroup_in(journal) for lease, journal in new.items()}
        running = {lease: ref for lease in runs if (ref := self._refs[lease])}
        self._paths = frozenset(ref.path for ref in running.values())
        for lease_id, ref in running.items():
            self.see(lease_id, ref)

    def enter(self, lease_id: int, pid: int) -> None:
        """See *pid*, which has just entered, however soon it ends."""
        with self._lock:
            self._note(self._rolls.setdefault(lease_id, _Roll()), pid)

    def see(self, lease_id: int, ref: CgroupRef, *, closely: bool = False) -> None:
        """See who is in the lease's cgroup now; *closely*: also whether those known have left a namespace,
        if that was not seen within a second.
        """
        try:
            with self._tree.open(ref) as cgroup:
                pids = cgroup.members(self._paths)
        except FileNotFoundError:
            pids = ()
        with self._lock:
            roll = self._rolls.setdefault(lease_id, _Roll())
            now = self._clock.boot_ns()
            closely = closely and now - roll.closely_ns >= SECOND_NS
            roll.closely_ns = now if closely else roll.closely_ns
            for pid in roll.here.keys() - pids:
                roll.seen[roll.here.pop(pid)].ended_ns = now
            for pid in pids:
                if pid not in roll.here:
                    self._note(roll, pid)
                elif closely:
                    self._note_namespaces(roll, pid)
            _trim(roll)

    def lives(self, lease_id: int) -> tuple[Life, ...]:
        """Who was seen in the lease, in wall-clock time as it counts now."""
        offset_ns = int(self._clock.wall() * SECOND_NS) - self._clock.boot_ns()

        def wall(boot_ns: int) -> float:
            return (boot_ns + offset_ns) / SECOND_NS

        with self._lock:
            roll = self._rolls.get(lease_id, _Roll())
            return tuple(
                Life(pid, wall(one.began_ns), None if one.ended_ns is None else wall(one.ended_ns))
                for (pid, _), one in roll.seen.items()
            )

    def namespaces(self, lease_id: int) -> frozenset[Kind]:
        """What some process of the lease had in a namespace of its own."""
        with self._lock:
            return frozenset(self._rolls.get(lease_id, _Roll()).namespaces)

    def _note(self, roll: _Roll, pid: int) -> None:
        start_time = start_time_of(pid)
        if start_time is None:
            return
        key = (pid, start_time)
        roll.seen.setdefault(key, _Seen(start_time * TICK_NS)).ended_ns = None
        roll.here[pid] = key
        self._note_namespaces(roll, pid)

    def _note_namespaces(self, roll: _Roll, pid: int) -> None:
        if other_namespace(pid, "ipc"):
            roll.namespaces |= {Kind.SEGMENT, Kind.QUEUE, Kind.SEMAPHORES}
        if other_namespace(pid, "mnt") and other_shm(pid, self._shm):
            roll.namespaces.add(Kind.FILE)


def _trim(roll: _Roll) -> None:
    ended = [key for key, one in roll.seen.items() if one.ended_ns is not None]
    for key in ended[: max(0, len(roll.seen) - MOST_LIVES)]:
        del roll.seen[key]
