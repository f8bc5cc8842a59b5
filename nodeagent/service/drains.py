"""Drains: an administrator takes a device, or the node, out of new grants, for a time or until undrained."""

from __future__ import annotations

from nodeagent.domain.clock import SECOND_NS, Clock
from nodeagent.domain.drains import NODE, carried, over
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.changes import Changes


class Drains:
    """*device* is a device's key, or `drains.NODE` for all of them."""

    def __init__(self, ledger: Ledger, clock: Clock, changes: Changes) -> None:
        self._ledger = ledger
        self._clock = clock
        self._changes = changes

    def begin(self, device: str, *, uid: int, reason: str | None, until_seconds: int | None) -> None:
        """Drain *device*; a second drain replaces the first."""
        until = self._clock.boot_ns() + until_seconds * SECOND_NS if until_seconds else None
        data = {"seconds": until_seconds}
        with self._ledger.write() as tx:
            tx.drain(device, reason=reason, uid=uid, until_ns=until)
            tx.event("drained", uid=uid, device=_named(device), reason=reason, data=data)
        self._changes.announce()

    def end(self, device: str, *, uid: int) -> None:
        with self._ledger.write() as tx:
            tx.undrain(device)
            tx.event("undrained", uid=uid, device=_named(device))
        self._changes.announce()

    def end_all(self, *, uid: int) -> None:
        with self._ledger.write() as tx:
            for drain in tx.drains():
                tx.undrain(drain.device)
                tx.event("undrained", uid=uid, device=_named(drain.device))
        self._changes.announce()

    def look(self) -> None:
        """End what is over, and keep the end of the others right by the clocks as they are now."""
        drains = self._ledger.drains()
        ended = [(drain.device, why) for drain in drains if (why := over(drain, self._clock))]
        devices = {device for device, _ in ended}
        moved = [
            new for drain in drains if drain.device not in devices and (new := carried(drain, self._clock))
        ]
        if not ended and not moved:
            return
        with self._ledger.write(release=True) as tx:
            for device, why in ended:
                tx.undrain(device)
                tx.event("undrained", uid=None, device=_named(device), reason=why)
            for drain in moved:
                tx.carry_drain(drain)
        if ended:
            self._changes.announce()


def _named(device: str) -> str | None:
    """The device of an event; None for the node's."""
    return None if device == NODE else device
