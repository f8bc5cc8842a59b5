"""The watch: who really uses the GPUs, lease by lease, every few seconds, in a thread of its own.

It grants nothing and frees nothing: it writes events, ends a lease where the site says so, and tells the
survey what foreign users hold.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

import structlog

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.dmem import DmemController
from nodeagent.adapters.processes import pidfd_alive, pidfd_open, uids_of
from nodeagent.domain import watch
from nodeagent.domain.clock import SECOND_NS, Clock
from nodeagent.domain.device import Inventory
from nodeagent.domain.errors import AgentError
from nodeagent.domain.lease import Lease, LeaseState
from nodeagent.domain.watch import DrmClient, KfdUse, Over, Owner, Sample, Still
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.changes import Changes
from nodeagent.service.owners import Identity, Owners, owners
from nodeagent.service.release import Releaser
from nodeagent.service.survey import Survey

log = structlog.get_logger()

MOVED_BYTES = 64 << 20  # foreign memory that comes or goes before those who wait are woken


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the figures come from; *pids* None reads all processes."""

    kfd: Callable[[Collection[int] | None], tuple[KfdUse, ...]]
    drm: Callable[[Collection[int] | None], tuple[DrmClient, ...]]
    sdma_us: Callable[[Collection[int]], int]


@dataclass(frozen=True, slots=True)
class WatchPolicy:
    """The site's settings."""

    seconds: float = 5.0
    kill: bool = False
    tolerance_percent: float = 2.0
    stalled_seconds: float = 600.0


class Foreign:
    """What foreign users held at the last look: written by the watch, read by the survey and the scanner."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._devices: Mapping[str, int] = {}
        self._pools: Mapping[str, int] = {}

    def set(self, by_device: Mapping[str, int], inventory: Inventory) -> None:
        pools: dict[str, int] = {}
        for key, held in by_device.items():
            device = inventory.device(key)
            if device is not None:
                pools[device.pool] = pools.get(device.pool, 0) + held
        with self._lock:
            self._devices, self._pools = {key: held for key, held in by_device.items() if held}, pools

    def by_device(self) -> Mapping[str, int]:
        with self._lock:
            return self._devices

    def of_pool(self, pool: str) -> int:
        with self._lock:
            return self._pools.get(pool, 0)


@dataclass(slots=True)
class _Seen:
    """What earlier looks saw, so that each thing is said once for as long as it lasts."""

    over: set[int] = field(default_factory=set)  # leases that were over their grant at the last look
    told_over: set[int] = field(default_factory=set)
    still: dict[int, Still] = field(default_factory=dict)
    sdma_us: dict[int, int] = field(default_factory=dict)
    told_stalled: set[int] = field(default_factory=set)
    foreign: set[tuple[int, str]] = field(default_factory=set)  # uid and device


class Watch:
    """Looks every few seconds. Its memory is this process's: after a restart two new looks are needed."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        survey: Survey,
        releaser: Releaser,
        changes: Changes,
        tree: CgroupTree | None,
        dmem: DmemController | None,
        sources: Sources,
        foreign: Foreign,
        policy: WatchPolicy = WatchPolicy(),
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._survey = survey
        self._releaser = releaser
        self._changes = changes
        self._tree = tree
        self._dmem = dmem
        self._sources = sources
        self._foreign = foreign
        self._policy = policy
        self._seen = _Seen()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._failing: str | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def guarded_look(self) -> None:
        """One look; a fault is logged when it is a new one, and the next look is taken all the same."""
        why, unforeseen = None, None
        try:
            self.look()
        except (AgentError, OSError) as fault:
            why = str(fault)
        except Exception as fault:
            why, unforeseen = repr(fault), fault
        if why != self._failing:
            self._failing = why
            if why is None:
                log.info("the watch works again")
            else:
                log.error("the watch failed", why=why, exc_info=unforeseen)

    def look(self) -> None:
        """Take one sample of the whole node and act on it."""
        # Owners first: a process that enters its lease meanwhile must not be taken for a foreign one.
        inventory, whose = self._survey.found(), owners(self._ledger, self._tree, self._clock)
        sample, identities = self._sample(whose)
        by_process = watch.used(sample, inventory)
        by_owner = watch.by_owner(by_process, sample.owners)
        active = [lease for lease in self._ledger.live() if lease.state is LeaseState.ACTIVE]
        self._note_foreign(sample, by_process, by_owner.get(None, {}), inventory)
        self._note_overuse(active, by_owner, whose, inventory, identities)
        self._note_stalled(active, sample)

    def _run(self) -> None:
        while not self._stop.wait(self._policy.seconds):
            self.guarded_look()

    def _sample(
        self, whose: Owners, pids: Collection[int] | None = None
    ) -> tuple[Sample, dict[int, Identity]]:
        """Read the figures; count only processes that were the same, in the same lease, before and after."""
        known = [one.pid for one in self._sources.kfd(pids)]
        before = whose.of_all(known)
        kfd, clients = self._sources.kfd(pids), self._sources.drm(pids)
        others = {pid for client in clients for pid in client.pids} - before.keys()
        before |= whose.of_all(others)
        after = whose.of_all(before)
        same = {pid: one for pid, one in after.items() if before[pid] == one}
        return Sample(kfd, clients, {pid: one.owner for pid, one in same.items()}), same

    # -- over-use -----------------------------------------------------------------------------------

    def _note_overuse(
        self,
        active: list[Lease],
        by_owner: Mapping[Owner, Mapping[str, int]],
        whose: Owners,
        inventory: Inventory,
        identities: Mapping[int, Identity],
    ) -> None:
        over = {
            lease.id: found
            for lease in active
            if (found := self._over(lease, by_owner.get(lease.id, {}), whose, inventory))
        }
        twice = [lease for lease in active if lease.id in over and lease.id in self._seen.over]
        for lease in twice:
            if lease.id not in self._seen.told_over:
                self._tell(lease, over[lease.id])
                self._seen.told_over.add(lease.id)
            if self._policy.kill:
                self._end(lease, whose, inventory, identities)
        self._seen.over = set(over)
        self._seen.told_over &= over.keys()

    def _over(
        self, lease: Lease, by_device: Mapping[str, int], whose: Owners, inventory: Inventory
    ) -> tuple[Over, ...]:
        """By what its processes hold, or by what is charged to its cgroup: the larger of both."""
        taken = watch.by_region(by_device, inventory)
        for region, charged in self._charged(lease.id, whose).items():
            taken[region] = max(charged, taken.get(region, 0))
        return watch.overuse(watch.granted(lease.slices, inventory), taken, self._policy.tolerance_percent)

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

    def _end(
        self, lease: Lease, whose: Owners, inventory: Inventory, identities: Mapping[int, Identity]
    ) -> None:
        """End *lease* if a third sample, of the very processes of this look held by pidfd, says the same.

        Threat 30. What follows acts on the recorded cgroup's descriptor, never on these pids.
        """
        mine = {pid: one for pid, one in identities.items() if one.owner == lease.id}
        with ExitStack() as held:
            pidfds = {pid: descriptor for pid in mine if (descriptor := pidfd_open(pid)) is not None}
            for descriptor in pidfds.values():
                held.callback(os.close, descriptor)
            sample, again = self._sample(whose, pidfds.keys())
            steady = {pid for pid, one in again.items() if one == mine[pid] and pidfd_alive(pidfds[pid])}
            only = Sample(sample.kfd, sample.clients, dict.fromkeys(steady, lease.id))
            by_owner = watch.by_owner(watch.used(only, inventory), only.owners)
            over = self._over(lease, by_owner.get(lease.id, {}), whose, inventory)
        if over:
            self._releaser.end(lease.id, uid=None, reason=_in_words(over), kind="overuse_ended")

    # -- no progress --------------------------------------------------------------------------------

    def _note_stalled(self, active: list[Lease], sample: Sample) -> None:
        seen, now = self._seen, self._clock.boot_ns()
        seen.still = {
            lease.id: watch.follow(seen.still.get(lease.id), watch.activity(sample, lease.id), now)
            for lease in active
        }
        for lease in active:
            still = seen.still[lease.id]
            if still.why is None:
                seen.told_stalled.discard(lease.id)
                seen.sdma_us.pop(lease.id, None)
            elif lease.id not in seen.told_stalled and self._long(now - still.since_ns):
                self._suspect(lease, still, sample, now)
        seen.told_stalled &= seen.still.keys()

    def _long(self, still_ns: int) -> bool:
        return 0 < self._policy.stalled_seconds * SECOND_NS <= still_ns

    def _suspect(self, lease: Lease, still: Still, sample: Sample, now: int) -> None:
        """Look at the slow counter last, and twice: copies that go on are progress."""
        sdma_us = self._sources.sdma_us(sample.pids(lease.id))
        before = self._seen.sdma_us.get(lease.id)
        self._seen.sdma_us[lease.id] = sdma_us
        if before is None:
            return
        if sdma_us != before:
            self._seen.still[lease.id] = Still(still.activity, None, now)
            return
        self._seen.told_stalled.add(lease.id)
        seconds = (now - still.since_ns) // SECOND_NS
        masks = {held.placed.device: f"{held.placed.cus.bits:#x}" for held in lease.slices}
        with self._ledger.write(release=True) as tx:
            tx.event(
                "lease_stalled",
                uid=None,
                lease=lease.id,
                reason=f"for {seconds} s {still.why}",
                data={"masks": masks, "seconds": seconds},
            )
        log.warning("LEASE_STALLED", lease=lease.id, why=still.why, masks=masks)
        self._changes.announce(lease.id)

    # -- foreign users ------------------------------------------------------------------------------

    def _note_foreign(
        self,
        sample: Sample,
        by_process: Mapping[tuple[int, str], int],
        by_device: Mapping[str, int],
        inventory: Inventory,
    ) -> None:
        before = self._foreign.by_device()
        self._foreign.set(by_device, inventory)
        queues = {(one.pid, device) for one in sample.kfd if (device := _card(one, inventory)) and one.queues}
        strangers = sample.pids(None)
        users: dict[tuple[int, str], list[int]] = {}
        for pid, device in sorted(by_process.keys() | queues):
            uids = uids_of(pid) if pid in strangers else None
            if uids and (by_process.get((pid, device)) or (pid, device) in queues):
                users.setdefault((uids[0], device), []).append(pid)
        new = users.keys() - self._seen.foreign
        if new:
            with self._ledger.write(release=True) as tx:
                for uid, device in sorted(new):
                    pids = users[uid, device]
                    held = sum(by_process.get((pid, device), 0) for pid in pids)
                    tx.event(
                        "foreign_user",
                        uid=None,
                        device=device,
                        reason=f"uid {uid} uses the device outside every lease",
                        data={"uid": uid, "pids": pids[:16], "vram_bytes": held},
                    )
        self._seen.foreign = set(users)
        moved = (abs(before.get(key, 0) - by_device.get(key, 0)) for key in before.keys() | by_device.keys())
        if new or any(size >= MOVED_BYTES for size in moved):
            self._changes.announce()


def _card(one: KfdUse, inventory: Inventory) -> str | None:
    return next((device.key for device in inventory.devices if device.gpu_id == one.gpu_id), None)


def _in_words(over: tuple[Over, ...]) -> str:
    return "; ".join(
        f"{one.region}: {one.used_bytes} bytes of VRAM in use, {one.granted_bytes} granted" for one in over
    )
