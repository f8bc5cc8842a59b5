"""The node's devices as they are now: scanned again when KFD says that the topology changed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import structlog

from nodeagent.domain.cuset import CuSet
from nodeagent.domain.device import Device, DeviceState, Inventory
from nodeagent.domain.drains import NODE
from nodeagent.domain.errors import AgentError, LedgerUnavailable
from nodeagent.domain.lease import HeldSlice
from nodeagent.domain.records import Drain, Registered
from nodeagent.domain.usage import leases_of
from nodeagent.domain.watch import less_foreign
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.card_health import CardHealth
from nodeagent.service.orders import Free
from nodeagent.service.switches import Switches

log = structlog.get_logger()

NOTHING = Inventory(generation=None, devices=(), pools=())
UNSCANNED = "the devices of this node were not scanned yet"


class Survey:
    """Holds the last scan. Before the first one no device is known, and so none is taken for gone."""

    def __init__(
        self,
        ledger: Ledger,
        scan: Callable[[], Inventory],
        generation: Callable[[], int | None],
        foreign: Callable[[], Mapping[str, int]] = dict,  # bytes by device, of processes in no lease
        owned: Callable[[Inventory], Inventory] = lambda inventory: inventory,  # with whose devices are
        switches: Switches | None = None,
        health: CardHealth | None = None,
    ) -> None:
        self.switches = switches or Switches()
        self.health = health  # of the cards by their own counters
        self._ledger = ledger
        self._foreign = foreign
        self._owned = owned
        self._scan = scan
        self._generation = generation
        self._lock = threading.Lock()
        self._found: Inventory | None = None
        self._registered = False  # the ledger may have been unable to take the last scan
        self._unbooked: str | None = UNSCANNED

    def rescan(self) -> Inventory:
        """Scan now, and tell the ledger the capacities that its triggers check."""
        return self._book(self._look())

    def look_again(self) -> bool:
        """Scan because something may have changed; whether it had. Else nothing is written."""
        found = self._look()
        known = self.shown()
        alive = tuple(device for device in known.devices if device.state is not DeviceState.GONE)
        if self._registered and found == replace(known, devices=alive):
            return False
        self._book(found)
        return True

    def _look(self) -> Inventory:
        return with_epochs(self._scan(), self._ledger.registered())

    def _book(self, found: Inventory) -> Inventory:
        with self._lock:
            gone = tuple(
                replace(device, state=DeviceState.GONE, reason="was on this node and vanished")
                for device in (self._found or NOTHING).devices
                if found.device(device.key) is None
            )
            self._found = replace(found, devices=found.devices + gone)
            current, self._registered = self._found, False
        # One bad read must not overwrite what is known of a device: its next epoch would end its leases.
        sound = [device for device in found.devices if device.state is not DeviceState.UNHEALTHY]
        try:
            with self._ledger.write(release=True) as tx:
                tx.register(sound, found.pools)
                tx.event("rescanned", uid=None, data={"devices": len(found.devices), "gone": len(gone)})
        except AgentError as fault:
            self._unbooked = f"the ledger did not take the last scan of the devices: {fault}"
            raise
        self._registered, self._unbooked = True, None
        log.info("scanned the node", devices=len(found.devices), skipped=len(found.skipped), gone=len(gone))
        return current

    def rescan_if_changed(self) -> bool:
        """Rescan when KFD's generation_id is another than the last scan's, or that one is not booked yet."""
        if self._registered and self._generation() == self.shown().generation:
            return False
        self.rescan()
        return True

    def forget(self, pci: str) -> None:
        """Of a card that is partitioned anew: the devices that it was divided into before."""
        with self._lock:
            found = self._found
            if found is not None:
                left = [one for one in found.devices if one.pci != pci or one.state is not DeviceState.GONE]
                self._found = replace(found, devices=tuple(left))

    def doubts(self) -> tuple[str, ...]:
        """Why nothing can be granted: the ledger holds each slice to what it knows of its device."""
        return () if self._unbooked is None else (self._unbooked,)

    def checkup(self) -> bool:
        """Look at the cards' own counters, where that is due; whether that changed anything."""
        return self.health is not None and self.health.look(self.shown())

    def uncorrectable(self) -> Mapping[str, int]:
        """By PCI address, the uncorrectable errors of cards that tell of any, 0 included."""
        records = self.health.records() if self.health else {}
        return {
            pci: sum(one.uncorrectable.values()) for pci, one in sorted(records.items()) if one.uncorrectable
        }

    def away(self, device_key: str) -> bool:
        """Whether the last scan did not find the device. Raises what `found` does."""
        device = self.found().device(device_key)
        return device is None or device.state is DeviceState.GONE

    def found(self) -> Inventory:
        """The last scan alone, which needs no ledger.

        Raises LedgerUnavailable before the first one, which does: for the epochs of what it finds.
        """
        with self._lock:
            if self._found is None:
                raise LedgerUnavailable(UNSCANNED)
            return self._found

    def shown(self) -> Inventory:
        """The last scan for people to look at: empty before the first one."""
        with self._lock:
            return self._found or NOTHING

    def inventory(self, *, foreign: bool = True) -> Inventory:
        """The last scan with owners and sick cards, less what *foreign* users hold, with drains on top.

        Raises what `found` does.
        """
        found = self.switches.marked(self._owned(self.found()))
        if self.health is not None:
            found = self.health.marked(found)
        others = self._foreign() if foreign else {}
        if others:
            found = less_foreign(found, others, self._ledger.held())
        return drained(found, self._ledger.drains())


def with_epochs(inventory: Inventory, registered: Sequence[Registered]) -> Inventory:
    """*inventory* with each device in its epoch: another mode, or another number of CUs, opens a new one."""
    known = {row.device: row for row in registered}
    return replace(
        inventory,
        devices=tuple(
            replace(device, epoch=_epoch(device, known.get(device.key))) for device in inventory.devices
        ),
    )


def _epoch(device: Device, last: Registered | None) -> int:
    if last is None:
        return device.epoch
    modes = (device.compute_partition, device.memory_partition, device.cus)
    same = modes == (last.compute_partition, last.memory_partition, last.cus)
    return last.epoch if same or device.state is DeviceState.UNHEALTHY else last.epoch + 1


def drained(inventory: Inventory, drains: tuple[Drain, ...]) -> Inventory:
    """*inventory* with every drained device marked so; a sick device stays sick."""
    if not drains:
        return inventory
    reasons = {drain.device: drain.reason for drain in drains}
    if NODE in reasons:
        reasons = {device.key: reasons[NODE] for device in inventory.devices} | reasons
    return replace(
        inventory,
        devices=tuple(
            replace(device, state=DeviceState.DRAINING, reason=reasons[device.key])
            if device.key in reasons and device.state is DeviceState.HEALTHY
            else device
            for device in inventory.devices
        ),
    )


def free_of(device: Device, inventory: Inventory, held: tuple[HeldSlice, ...]) -> Free:
    """What no live slice holds on *device*; bytes are the less of the device's own and its pool's."""
    present = [h for h in held if h.placed.device == device.key]
    on_device = [h.placed for h in present if h.placed.epoch == device.epoch]
    taken = CuSet()
    for placed in on_device:
        taken |= placed.cus
    pool = inventory.pool(device.pool)
    pool_left = pool.grantable_bytes if pool else 0
    pool_left -= sum(h.placed.vram_bytes for h in held if h.placed.pool == device.pool)
    own_left = device.grantable_bytes - sum(placed.vram_bytes for placed in on_device)
    return Free(
        cus=CuSet.span(0, device.cus) - taken,
        vram_bytes=max(0, min(pool_left, own_left)),
        queue_slots=max(0, device.queue_slots - sum(placed.queue_slots for placed in on_device)),
        shares=None if device.shares is None else max(0, device.shares - len(leases_of(present))),
    )
