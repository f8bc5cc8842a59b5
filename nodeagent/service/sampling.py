"""One look at who uses the GPUs: the figures, whose each process is, and what follows from both."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.domain import watch
from nodeagent.domain.clock import Clock
from nodeagent.domain.device import Inventory
from nodeagent.domain.lease import Lease, LeaseState
from nodeagent.domain.watch import DrmClient, KfdUse, Owner, Sample
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.owners import Identity, Owners, owners
from nodeagent.service.survey import Survey


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the figures come from; *pids* None reads all processes."""

    kfd: Callable[[Collection[int] | None], tuple[KfdUse, ...]]
    drm: Callable[[Collection[int] | None], tuple[DrmClient, ...]]
    sdma_us: Callable[[Collection[int]], int]
    mounted: Callable[[int], Owner] = lambda pid: None  # the lease whose note a process has mounted


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at the whole node found. VRAM is in bytes, by device key."""

    inventory: Inventory
    whose: Owners
    active: tuple[Lease, ...]
    sample: Sample
    identities: Mapping[int, Identity]
    by_process: Mapping[tuple[int, str], int]
    by_owner: Mapping[Owner, Mapping[str, int]]

    def by_pool(self, but: int | None = None) -> dict[str, int]:
        """What all use of each pool, bytes, but for the lease *but*."""
        sums: dict[str, int] = {}
        for owner, by_device in self.by_owner.items():
            for key, size in by_device.items():
                device = self.inventory.device(key)
                if device is not None and (owner is None or owner != but):
                    sums[device.pool] = sums.get(device.pool, 0) + size
        return sums


class Note(Protocol):
    """One question that each look is asked."""

    def note(self, look: Look) -> None:
        """Act on *look*; what earlier looks showed is the part's own to remember."""


class Sampler:
    """Reads the figures, and counts only what can be told for certain."""

    def __init__(
        self, ledger: Ledger, clock: Clock, survey: Survey, tree: CgroupTree | None, sources: Sources
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._survey = survey
        self._tree = tree
        self._sources = sources

    def look(self) -> Look:
        """Look at every process."""
        # Owners first: a process that enters its lease meanwhile must not be taken for a foreign one.
        inventory, whose = self._survey.found(), self.owners()
        sample, identities = self.sample(whose)
        by_process = watch.used(sample, inventory)
        return Look(
            inventory=inventory,
            whose=whose,
            active=self._ledger.live(LeaseState.ACTIVE),
            sample=sample,
            identities=identities,
            by_process=by_process,
            by_owner=watch.by_owner(by_process, sample.owners),
        )

    def owners(self) -> Owners:
        """Whose processes are, as it stands now."""
        return owners(self._ledger, self._tree, self._clock, self._sources.mounted)

    def sample(
        self, whose: Owners, pids: Collection[int] | None = None
    ) -> tuple[Sample, Mapping[int, Identity]]:
        """The figures of *pids*, or of all; only of processes that were the same, in the same lease, before
        and after.
        """
        known = [one.pid for one in self._sources.kfd(pids)]
        before = whose.of_all(known)
        kfd, clients = self._sources.kfd(pids), self._sources.drm(pids)
        others = {pid for client in clients for pid in client.pids} - before.keys()
        before |= whose.of_all(others)
        after = whose.of_all(before)
        same = {pid: one for pid, one in after.items() if before[pid] == one}
        return Sample(kfd, clients, {pid: one.owner for pid, one in same.items()}), same
