"""Keeps the closure: at every look, what is outside leases gets nothing of a leased region."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import structlog

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.closure import OutsideCgroups
from nodeagent.adapters.processes import alive
from nodeagent.domain.closure import Bytes, Place, close
from nodeagent.domain.device import Inventory
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.lease import Lease
from nodeagent.domain.records import EffectRecord
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.cgroup_effects import ADOPTED, CGROUP, DMEM, PROCESS, find
from nodeagent.service.survey import Survey

log = structlog.get_logger()

UNSEEN = "nothing outside leases was closed yet"


class Closing:
    """Closes regions outside leases, and to leases of others, and says of each whether it is closed."""

    def __init__(
        self,
        outside: OutsideCgroups,
        tree: CgroupTree,
        ledger: Ledger,
        survey: Survey,
        exempt: Sequence[str] = (),
    ) -> None:
        self._outside = outside
        self._tree = tree
        self._ledger = ledger
        self._survey = survey
        self._exempt = tuple(exempt)
        self._lock = threading.Lock()
        self._regions: tuple[str, ...] = ()
        self._open: Mapping[str, str] = {}

    def why_open(self, region: str) -> str | None:
        """Why *region* can be had outside leases; None: it was closed at the last look."""
        if region not in self._regions:
            return UNSEEN
        return self._open.get(region)

    def regions(self) -> tuple[str, ...]:
        """Those that were to be closed at the last look."""
        return self._regions

    def look(self, regions: Sequence[str]) -> None:
        """Close *regions*, and those that were closed before this start, and tell of what was changed."""
        with self._lock:
            self._close(tuple(sorted({*regions, *self._outside.regions()})))

    def again(self) -> None:
        """Close anew, now that a lease began or ended where others must be let through to it."""
        with self._lock:
            self._close(self._regions)

    def end(self) -> None:
        """Take back all limits outside leases that the agent wrote."""
        with self._lock:
            self._outside.release()
            self._regions = ()

    def _close(self, regions: tuple[str, ...]) -> None:
        failed: dict[str, str] = {}
        restored: list[str] = []

        def failing(why: str) -> None:
            failed.update({region: failed.get(region, why) for region in regions})

        if regions:
            self._outside.divide("/")
        if strays := self._outside.strays():
            failing(f"processes {', '.join(map(str, strays[:8]))} run in the root cgroup, which has no limit")
        places = self._places()
        closure = close(self._outside.children, self._outside.whole, places, regions, self._exempt)
        # A lease is on record before its cgroup is made, so that this knows every one that was met meanwhile.
        begun = self._places().keys() - places.keys()
        for path in closure.inner:
            try:
                self._outside.divide(path)
            except OutsideFault as fault:
                failing(str(fault))
        self._outside.release([(path, region) for path in closure.caps for region in regions])
        for path, limits in reversed(tuple(closure.caps.items())):  # children before what lets them through
            if any(f"{one}/".startswith(f"{path}/") for one in begun):
                continue  # its limits are its grant's; the next look sees to the others
            capping = self._outside.cap(path, limits)
            restored += [f"{path} {region}" for region in capping.restored]
            failed |= {region: failed.get(region, why) for region, why in capping.failed.items()}
        before, self._regions, self._open = self._open, regions, failed
        self._tell(before, failed, restored)

    def _tell(self, before: Mapping[str, str], failed: Mapping[str, str], restored: Sequence[str]) -> None:
        broken = {region: why for region, why in failed.items() if region not in before}
        mended = [region for region in before if region not in failed and region in self._regions]
        if not (broken or mended or restored) or not self._ledger.health().writable:
            return
        with self._ledger.write(release=True) as tx:
            for region, why in broken.items():
                tx.event("closure_broken", uid=None, reason=why, data={"region": region})
            if mended or restored:
                tx.event(
                    "closure_restored", uid=None, data={"regions": mended, "limits": list(restored[:32])}
                )
        log.info("the closure changed", broken=broken, mended=mended, restored=restored)

    def _places(self) -> dict[str, Place]:
        """Where live leases are, with what they hold there."""
        inventory = self._survey.found()
        places: dict[str, Place] = {}
        live = self._ledger.live()
        journals = self._ledger.journals((lease.id for lease in live), (CGROUP, DMEM, ADOPTED, PROCESS))
        for lease in live:
            for path, limited in self._at(journals[lease.id]):
                before = places.get(path)
                leased = _sum(before.leased if before else {}, leased_bytes(lease, inventory))
                places[path] = Place(leased, limited)
        return places

    def _at(self, journal: Sequence[EffectRecord]) -> list[tuple[str, bool]]:
        """The cgroups in which a lease's holders run, and whether the lease has that one for itself."""
        shared = any(record.kind == DMEM and record.arguments.get("shared") for record in journal)
        found: list[tuple[str, bool]] = []
        for record in journal:
            told = record.arguments
            if record.kind == CGROUP:
                own = (record.evidence or {}).get("path")
                if own is not None and told["parent"] is None:
                    found.append((str(own), True))
                elif shared:
                    found.append((str(told["parent"]), False))
                elif ref := find(self._tree, told):
                    found.append((ref.path, True))
                elif own is not None:
                    found.append((str(own), True))
            elif record.kind == ADOPTED:
                found.append((str(told["path"]), False))
            elif record.kind == PROCESS and told["strict"]:
                pid = int(str(told["pid"]))
                path = self._tree.cgroup_of(pid) if alive(pid, int(str(told["start_time"]))) else None
                found += [] if path in (None, "/") else [(str(path), False)]
        return found


def leased_bytes(lease: Lease, inventory: Inventory) -> Bytes:
    """What *lease* holds of each region."""
    regions: dict[str, int] = {}
    for held in lease.slices:
        pool = inventory.pool(held.placed.pool)
        if pool is not None:
            regions[pool.region] = regions.get(pool.region, 0) + held.placed.vram_bytes
    return regions


def _sum(first: Bytes, second: Bytes) -> Bytes:
    return {region: first.get(region, 0) + second.get(region, 0) for region in {*first, *second}}
