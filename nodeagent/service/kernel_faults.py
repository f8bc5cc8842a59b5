"""Trouble with cards that the kernel's log tells of: as events, few of them, and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Protocol

import structlog

from nodeagent.adapters.kernel_log import Read
from nodeagent.domain.clock import SECOND_NS, Clock
from nodeagent.domain.device import Inventory
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.kernel_faults import Fault, KernelFault, fault_of
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.sampling import Look

log = structlog.get_logger()

TELL_NS = 60 * SECOND_NS  # between two events of one kind and card: a program may fault without end
_Key = tuple[str | None, Fault]


class Source(Protocol):
    """See `nodeagent.adapters.kernel_log.KernelLog`."""

    def open(self) -> None: ...

    def read(self) -> Read: ...


class KernelFaults:
    """Reads what came since the last look. It ends nothing: a reset is the uevents' to act upon."""

    def __init__(self, source: Source, ledger: Ledger, clock: Clock) -> None:
        self._source = source
        self._ledger = ledger
        self._clock = clock
        self._opened: bool | None = None  # None: not tried yet
        self._counts: Counter[tuple[str, str]] = Counter()
        self._untold: Counter[_Key] = Counter()
        self._first: dict[_Key, KernelFault] = {}
        self._told_ns: dict[_Key, int] = {}
        self.lost = 0  # times that lines were overwritten before they were read

    def note(self, look: Look) -> None:
        """Tell of what is new."""
        if self._opened is None:
            self._open()
        if not self._opened:
            return
        found = self._source.read()
        self.lost += found.lost
        for line in found.lines:
            fault = fault_of(line.text, line.device)
            if fault is not None:
                self._counts[fault.pci or "", fault.fault] += 1
                key = (fault.pci, fault.fault)
                self._untold[key] += 1
                self._first.setdefault(key, fault)
        self._tell(look.inventory)

    def counts(self) -> Mapping[tuple[str, str], int]:
        """Lines so far, by PCI address (empty: of no card) and kind."""
        return dict(self._counts)

    def _open(self) -> None:
        try:
            self._source.open()
            self._opened = True
        except OutsideFault as fault:
            log.warning("no kernel log: faults that amdgpu tells of are not seen", why=str(fault))
            self._opened = False

    def _tell(self, inventory: Inventory) -> None:
        now = self._clock.boot_ns()
        due = [key for key in self._untold if now - self._told_ns.get(key, now - TELL_NS) >= TELL_NS]
        if not due:
            return
        with self._ledger.write(release=True) as tx:
            for key in due:
                first = self._first[key]
                on_card = [one.key for one in inventory.devices if one.pci == first.pci]
                tx.event(
                    "kernel_fault",
                    uid=None,
                    device=on_card[0] if on_card else None,
                    reason=first.text,
                    data={"fault": first.fault, "pci": first.pci, "lines": self._untold[key]},
                )
        for key in due:
            self._told_ns[key] = now
            del self._untold[key], self._first[key]
