"""Cards whose partition mode is being changed: nothing is granted on them, whatever becomes of the agent."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Protocol

from nodeagent.domain.device import DeviceState, Inventory
from nodeagent.domain.partition import Switch
from nodeagent.domain.records import Json


class Kept(Protocol):
    """What outlives this process, though not the boot: a reboot ends a switch as it ends everything."""

    def read(self) -> Mapping[str, Switch]: ...

    def put(self, entries: Mapping[str, Json], /) -> None:
        """Raises OutsideFault where it cannot be kept."""


class Switches:
    """The switches that have begun and are not known to be over, by their card's PCI address."""

    def __init__(self, kept: Kept | None = None) -> None:
        self._kept = kept
        self._lock = threading.Lock()
        self._known: dict[str, Switch] | None = None  # None: not read yet

    def current(self) -> Mapping[str, Switch]:
        with self._lock:
            return dict(self._read())

    def begin(self, switch: Switch) -> None:
        """Write *switch* down; from now on nothing is booked on its card. Raises OutsideFault."""
        with self._lock:
            self._put({**self._read(), switch.pci: switch})

    def end(self, pci: str) -> None:
        """The card's mode is known. Raises OutsideFault; then it counts as unknown still."""
        with self._lock:
            self._put({key: switch for key, switch in self._read().items() if key != pci})

    def closed(self, pci: str) -> str | None:
        """Why nothing is booked on the card now; None where something may be."""
        switch = self.current().get(pci)
        return None if switch is None else f"its card is being switched from {switch.before} to {switch.to}"

    def marked(self, inventory: Inventory) -> Inventory:
        """*inventory* with the devices of such cards draining."""
        if not self.current():
            return inventory
        return replace(
            inventory,
            devices=tuple(
                replace(device, state=DeviceState.DRAINING, reason=why)
                if device.state is DeviceState.HEALTHY and (why := self.closed(device.pci))
                else device
                for device in inventory.devices
            ),
        )

    def _read(self) -> Mapping[str, Switch]:
        if self._known is None:
            self._known = dict(self._kept.read()) if self._kept else {}
        return self._known

    def _put(self, known: dict[str, Switch]) -> None:
        if self._kept is not None:
            self._kept.put({pci: asdict(switch) for pci, switch in known.items()})
        self._known = known
