"""From the kernel's announcements to their consequences: one thread hears them, the reconciler's acts.

They are hints. One that is lost is made up for by the reconciler's period and by the anchors. The reset of a
device leaves nothing behind to be looked at but its processes, which KFD aborts, and for five minutes a dump:
that one was not heard of is told, and ends no lease, for a dump does not say when it was.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

import structlog

from nodeagent.adapters.uevents import Heard
from nodeagent.domain.clock import SECOND_NS, Clock
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.lease import Lease, LeaseState
from nodeagent.domain.uevents import Reset, meaning
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.changes import Changes
from nodeagent.service.dumps import Dumps
from nodeagent.service.release import Releaser
from nodeagent.service.survey import Survey

log = structlog.get_logger()

RESCAN_NS = SECOND_NS  # least time between two scans: users can have the kernel tell much


class Source(Protocol):
    """See `nodeagent.adapters.uevents.UeventSocket`."""

    def open(self) -> int: ...

    def read(self) -> Heard: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Announced:
    reset: Reset
    at_ns: int  # boot time; a lease that is younger never ran on the device as it was


class Uevents:
    """Keeps what was heard until it is done; of several resets of one card the last."""

    def __init__(
        self,
        source: Source,
        clock: Clock,
        ledger: Ledger,
        survey: Survey,
        releaser: Releaser,
        changes: Changes,
        dumps: Dumps,
    ) -> None:
        self._source = source
        self._dumps = dumps
        self._clock = clock
        self._ledger = ledger
        self._survey = survey
        self._releaser = releaser
        self._changes = changes
        self._lock = threading.Lock()
        self._resets: dict[str, _Announced] = {}  # by PCI address
        self._rescan = False
        self._unheard = False  # something may have been announced that was not heard
        self._deaf = False
        self._scanned_ns: int | None = None

    def open(self) -> int | None:
        """Begin to listen: the descriptor to poll, or None where nothing is to be heard, which is logged."""
        try:
            descriptor = self._source.open()
        except OutsideFault as fault:
            log.warning(
                "no kernel events: changes of devices are found by looking, resets by their dumps",
                why=str(fault),
            )
            self._deaf = True
            return None
        self._rescan = self._unheard = True  # what happened since the last scan was not heard
        # What waited is older than any lease that is to come: it is heard before one is granted.
        return None if self.hear() is None else descriptor

    def close(self) -> None:
        self._source.close()

    def hear(self) -> bool | None:
        """Take what has come; whether there is something to do. None: nothing will ever come again."""
        try:
            heard = self._source.read()
        except OutsideFault as fault:
            log.error(
                "kernel events ended: changes of devices are found by looking, resets by their dumps",
                why=str(fault),
            )
            self._deaf = True
            return None
        found = [means for event in heard.events if (means := meaning(event))]
        if heard.lost:
            log.warning("kernel events were lost: scanning the node")
        with self._lock:
            for means in found:
                if isinstance(means, Reset):
                    self._resets[means.pci] = _Announced(means, self._clock.boot_ns())
            self._rescan = self._rescan or bool(found) or heard.lost
            self._unheard = self._unheard or heard.lost
        return bool(found) or heard.lost

    def act(self) -> None:
        """Do what was heard of; what fails is done at the next look."""
        with self._lock:
            resets = tuple(self._resets.values())
        for announced in resets:
            self._lose(announced)
            with self._lock:
                if self._resets.get(announced.reset.pci) is announced:
                    del self._resets[announced.reset.pci]
        if resets:
            self._dumps.see()  # theirs: the driver writes them before it announces the reset
        if self._unheard or self._deaf:
            self._suspect()
        self._look_again()

    def _suspect(self) -> None:
        """Tell of resets that only a dump tells of."""
        with self._lock:
            self._unheard = False  # before the look: what is lost during it calls for another
        try:
            for dump, pci in self._dumps.unseen().items():
                self._tell_unheard(dump, pci)
        except Exception:
            self._unheard = True
            raise
        self._dumps.see()

    def _tell_unheard(self, dump: str, pci: str) -> None:
        devices = self._on_card(pci)
        live = self._ledger.live(LeaseState.ACTIVE)
        log.warning("a card was reset, and nobody heard of it", pci=pci, dump=dump)
        with self._ledger.write(release=True) as tx:
            for device in sorted(devices):
                tx.event(
                    "reset_unheard",
                    uid=None,
                    device=device,
                    reason=f"the kernel's {dump} says that the card {pci} was reset; no event told of it",
                    data={"dump": dump, "leases": [one.id for one in live if device in _devices(one)]},
                )

    def _on_card(self, pci: str) -> set[str]:
        """Devices of the card at this address; none of another driver's, or where the agent grants none."""
        return {one.key for one in self._survey.found().devices if one.pci == pci}

    def _look_again(self) -> None:
        now = self._clock.boot_ns()
        if not self._rescan or (self._scanned_ns is not None and now - self._scanned_ns < RESCAN_NS):
            return
        with self._lock:
            self._rescan = False  # before the scan: what is heard during it calls for another
        self._scanned_ns = now
        try:
            changed = self._survey.look_again()
        except Exception:
            self._rescan = True
            raise
        if changed:
            self._changes.announce()

    def _lose(self, announced: _Announced) -> None:
        """The leases that were on the card end; the card itself goes on, unless its files say otherwise."""
        reset = announced.reset
        devices = self._on_card(reset.pci)
        if not devices:
            return
        lost = [lease for lease in self._ledger.live() if self._lost(lease, devices, announced.at_ns)]
        guilty = f" after {reset.guilty}" if reset.guilty else ""
        log.warning("a card was reset", pci=reset.pci, guilty=reset.guilty, leases=[one.id for one in lost])
        with self._ledger.write(release=True) as tx:
            for device in sorted(devices):
                tx.event(
                    "device_reset",
                    uid=None,
                    device=device,
                    reason=f"the card {reset.pci} was reset{guilty}",
                    data={
                        "recovery": reset.recovery,
                        "pid": reset.pid,
                        "task": reset.task,
                        "leases": [one.id for one in lost if device in _devices(one)],
                    },
                )
        self._changes.announce()
        for lease in lost:
            where = ", ".join(sorted(_devices(lease) & devices))
            self._releaser.end(lease.id, uid=None, reason=f"device {where} was reset{guilty}", kind="lost")

    @staticmethod
    def _lost(lease: Lease, devices: set[str], at_ns: int) -> bool:
        return (
            lease.state is LeaseState.ACTIVE and lease.created_ns <= at_ns and bool(_devices(lease) & devices)
        )


def _devices(lease: Lease) -> set[str]:
    return {held.placed.device for held in lease.slices}
