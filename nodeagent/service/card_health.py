"""The cards' health by their own counters, and what the site does about it. It outlives a restart."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Protocol

from nodeagent.adapters.bounded import Bounded
from nodeagent.domain.clock import SECOND_NS, Clock
from nodeagent.domain.device import DeviceState, Inventory
from nodeagent.domain.records import Json
from nodeagent.domain.vitals import CardRecord, HealthPolicy, Vitals, complaint
from nodeagent.ledger.ledger import Ledger
from nodeagent.ledger.transaction import Transaction

LOOK_NS = 60 * SECOND_NS  # reading the counters costs the driver a talk with the card
CARD_SECONDS = 2.0  # for one card: one that hangs does not answer

Records = Mapping[str, CardRecord]  # by PCI address


class Kept(Protocol):
    """What outlives this process, though not the boot: the driver's counters do neither."""

    def read(self) -> Records: ...

    def keep(self, entries: Mapping[str, Json], /) -> None:
        """Log where it cannot be kept."""

    def put(self, entries: Mapping[str, Json], /) -> None:
        """Raises OutsideFault where it cannot be kept."""


class CardHealth:
    """Remembers each card's counters. *read*: by PCI address and target; None where the card sleeps."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        read: Callable[[str, str | None], Vitals | None],
        kept: Kept,
        policy: HealthPolicy,
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._read = read
        self._kept = kept
        self._policy = policy
        self._lock = threading.Lock()
        self._bounded: dict[str, Bounded[Vitals | None]] = {}
        self._known: Records | None = None  # None: not read yet
        self._last_ns: int | None = None

    def records(self) -> Records:
        """What is known of each card that was ever looked at in this boot."""
        known = self._known  # each grant asks: it is not to wait for a disk
        if known is not None:
            return known
        with self._lock:
            return self._recalled()

    def marked(self, inventory: Inventory) -> Inventory:
        """*inventory* with what is wrong with its cards."""
        return self._policy.mark(inventory, self.records())

    def look(self, inventory: Inventory) -> bool:
        """Look at the cards of *inventory*, where that is due; whether anything is another than before."""
        now = self._clock.boot_ns()
        if not inventory.devices or (self._last_ns is not None and now - self._last_ns < LOOK_NS):
            return False
        self._last_ns = now
        targets = {
            one.pci: one.gfx for one in inventory.devices if one.pci and one.state is not DeviceState.GONE
        }
        seen = {pci: look for pci, gfx in sorted(targets.items()) if (look := self._vitals(pci, gfx))}
        with self._lock:
            before = self._recalled()
            after = {
                pci: before.get(pci, CardRecord()).after(look, targets[pci]) for pci, look in seen.items()
            }
            self._known = {**before, **after}
            if self._known == before:
                return False
            self._kept.keep(_entries(self._known))  # a disk that takes nothing costs a later restart only
        self._tell(before, after)
        return True

    def acknowledge(self, pci: str, uid: int) -> bool:
        """Take the card's uncorrectable errors so far as known; whether there were any.

        Raises OutsideFault where that cannot be kept.
        """
        with self._lock:
            records = self._recalled()
            record = records.get(pci, CardRecord())
            if not record.errors:
                return False
            noted = {**records, pci: record.noted()}
            self._kept.put(_entries(noted))
            self._known = noted
        with self._ledger.write(release=True) as tx:
            data: dict[str, Json] = {"of": pci, "blocks": dict(record.errors)}
            tx.event("errors_acknowledged", uid=uid, data=data)
        return True

    def _recalled(self) -> Records:
        if self._known is None:
            self._known = dict(self._kept.read())
        return self._known

    def _vitals(self, pci: str, gfx: str | None) -> Vitals | None:
        bounded = self._bounded.setdefault(pci, Bounded(CARD_SECONDS))
        return bounded.call(lambda: self._read(pci, gfx))

    def _tell(self, before: Records, after: Records) -> None:
        """One event for each card and what changed of it."""
        with self._ledger.write(release=True) as tx:
            for pci, record in after.items():
                self._tell_one(tx, pci, before.get(pci, CardRecord()), record)

    def _tell_one(self, tx: Transaction, pci: str, before: CardRecord, record: CardRecord) -> None:
        data: dict[str, Json] = {"of": pci, "refused": self._policy.refuses(record)}
        if any(count > before.errors.get(block, 0) for block, count in record.errors.items()):
            blocks: dict[str, Json] = {"blocks": dict(record.errors)}
            why = complaint(pci, CardRecord(record.uncorrectable, record.acknowledged))
            tx.event("uncorrectable_errors", uid=None, reason=why, data={**data, **blocks})
        if record.link and record.link != before.link:
            tx.event("link_degraded", uid=None, reason=f"{pci} has {record.link}", data=data)
        if before.link and not record.link:
            tx.event("link_restored", uid=None, reason=f"{pci} had {before.link}", data=data)


def _entries(records: Records) -> dict[str, Json]:
    return {pci: asdict(record) for pci, record in records.items()}
