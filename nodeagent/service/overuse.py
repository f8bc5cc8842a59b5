"""Leases that hold more VRAM than they were granted: told at the second look, and ended by policy."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack

import structlog

from nodeagent.adapters.dmem import DmemController
from nodeagent.adapters.processes import pidfd_alive, pidfd_open
from nodeagent.domain import watch
from nodeagent.domain.device import Inventory
from nodeagent.domain.lease import Lease
from nodeagent.domain.watch import Over, Sample
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.changes import Changes
from nodeagent.service.owners import Owners
from nodeagent.service.release import Releaser
from nodeagent.service.sampling import Look, Sampler

log = structlog.get_logger()


class Overuse:
    """Remembers which leases were over their grant at the last look, so that each is told once a time."""

    def __init__(
        self,
        ledger: Ledger,
        releaser: Releaser,
        changes: Changes,
        dmem: DmemController | None,
        sampler: Sampler,
        *,
        kill: Callable[[], bool],
        tolerance_percent: float,
        known: Callable[[frozenset[int]], None] = lambda leases: None,
    ) -> None:
        self._ledger = ledger
        self._releaser = releaser
        self._changes = changes
        self._dmem = dmem
        self._sampler = sampler
        self._kill = kill
        self._tolerance_percent = tolerance_percent
        self._known = known  # told at each look who is over
        self._last: frozenset[int] = frozenset()
        self._told: set[int] = set()

    def note(self, look: Look) -> None:
        """Tell, and end, who was over at the last look too."""
        over = {
            lease.id: found
            for lease in look.active
            if not lease.observed
            and (found := self._over(lease, look.by_owner.get(lease.id, {}), look.whose, look.inventory))
        }
        for lease in look.active:
            if lease.id in over and lease.id in self._last:
                if lease.id not in self._told:
                    self._tell(lease, over[lease.id])
                    self._told.add(lease.id)
                if self._kill():
                    self._end(lease, look)
        self._last = frozenset(over)
        self._known(self._last)
        self._told &= over.keys()

    def _over(
        self, lease: Lease, by_device: Mapping[str, int], whose: Owners, inventory: Inventory
    ) -> tuple[Over, ...]:
        """By what its processes hold, or by what is charged to its cgroup: the larger of both."""
        taken = watch.by_region(by_device, inventory)
        for region, charged in self._charged(lease.id, whose).items():
            taken[region] = max(charged, taken.get(region, 0))
        return watch.overuse(watch.granted(lease.slices, inventory), taken, self._tolerance_percent)

    def _charged(self, lease_id: int, whose: Owners) -> Mapping[str, int]:
        ref = whose.refs.get(lease_id)
        if self._dmem is None or ref is None or self._dmem.unavailable() is not None:
            return {}
        try:
            return self._dmem.current(ref)
        except FileNotFoundError:
            return {}  # removed meanwhile

    def _tell(self, lease: Lease, over: tuple[Over, ...]) -> None:
        regions = {
            one.region: {"used_bytes": one.used_bytes, "granted_bytes": one.granted_bytes} for one in over
        }
        with self._ledger.write(release=True) as tx:
            tx.event("overuse", uid=None, lease=lease.id, reason=_in_words(over), data={"regions": regions})
        log.warning("a lease uses more than it was granted", lease=lease.id, why=_in_words(over))
        self._changes.announce(lease.id)

    def _end(self, lease: Lease, look: Look) -> None:
        """End *lease* if a third sample, of the very processes of this look held by pidfd, says the same.

        Threat 30. What follows acts on the recorded cgroup's descriptor, never on these pids.
        """
        mine = {pid: one for pid, one in look.identities.items() if one.owner == lease.id}
        with ExitStack() as held:
            pidfds = {pid: descriptor for pid in mine if (descriptor := pidfd_open(pid)) is not None}
            for descriptor in pidfds.values():
                held.callback(os.close, descriptor)
            sample, again = self._sampler.sample(look.whose, pidfds.keys())
            steady = {pid for pid, one in again.items() if one == mine[pid] and pidfd_alive(pidfds[pid])}
            only = Sample(sample.kfd, sample.clients, dict.fromkeys(steady, lease.id))
            by_owner = watch.by_owner(watch.used(only, look.inventory), only.owners)
            over = self._over(lease, by_owner.get(lease.id, {}), look.whose, look.inventory)
        if over:
            self._releaser.end(lease.id, uid=None, reason=_in_words(over), kind="overuse_ended")


def _in_words(over: tuple[Over, ...]) -> str:
    return "; ".join(
        f"{one.region}: {one.used_bytes} bytes of VRAM in use, {one.granted_bytes} granted" for one in over
    )
