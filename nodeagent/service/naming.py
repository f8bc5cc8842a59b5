"""Which devices a caller means: names that devices have by themselves, and places in a lease."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from nodeagent.domain.device import Device, Inventory
from nodeagent.domain.errors import InvalidField, UnknownThing
from nodeagent.domain.request import Request
from nodeagent.domain.selectors import named, pinned
from nodeagent.ledger.ledger import Ledger

# The index that a lease's programs count its devices by: a slice's place in the lease.
_IN_LEASE = re.compile(r"lease:([1-9][0-9]{0,15}):([0-9]{1,3})", re.ASCII)
_KEY = re.compile(r".+/[0-9]{1,3}", re.ASCII)


class Names:
    """Finds the devices that names mean now."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def devices(self, name: str, inventory: Inventory) -> tuple[Device, ...]:
        """The devices that *name* means. Raises UnknownThing where it means none, or is not clear."""
        try:
            return named(inventory, self._key_in_lease(name, "device"), "device")
        except InvalidField as fault:
            raise UnknownThing(fault.why) from fault

    def keys(self, name: str, inventory: Inventory) -> tuple[str, ...]:
        """Their keys; a full key stands for itself, for its device may be gone. Raises UnknownThing."""
        try:
            return tuple(device.key for device in self.devices(name, inventory))
        except UnknownThing:
            if _KEY.fullmatch(name):
                return (name,)
            raise

    def pinned(self, request: Request, inventory: Inventory) -> Request:
        """*request* with keys in place of what means another device later. Raises InvalidField."""
        slices = tuple(
            replace(
                asked,
                device=self._leased(asked.device, f"slices[{at}].device"),
                not_device=self._leased(asked.not_device, f"slices[{at}].not_device"),
            )
            for at, asked in enumerate(request.slices)
        )
        return pinned(replace(request, slices=slices), inventory)

    def _leased(self, names: Iterable[str], field: str) -> tuple[str, ...]:
        return tuple(self._key_in_lease(name, field) for name in names)

    def _key_in_lease(self, name: str, field: str) -> str:
        """The key behind ``lease:7:0``; any other name as it is."""
        place = _IN_LEASE.fullmatch(name.strip().casefold())
        if place is None:
            return name
        lease = self._ledger.lease(int(place[1]))
        at = int(place[2])
        if lease is None or at >= len(lease.slices):
            has = "there is no such lease" if lease is None else f"it has {len(lease.slices)} slices"
            raise InvalidField(field, f"{name!r} is no place in a lease: {has}; they count from 0")
        return lease.slices[at].placed.device
