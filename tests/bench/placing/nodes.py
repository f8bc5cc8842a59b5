"""Nodes of the shipped machine files, and the leases on them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from nodeagent.adapters import machine
from nodeagent.adapters.discovery import discover
from nodeagent.adapters.sysfs import SysTree
from nodeagent.domain.device import Device, Inventory, Pool
from nodeagent.domain.lease import HeldSlice, PlacedSlice, SliceState


@cache
def inventory(name: str) -> Inventory:
    """What the agent discovers on the machine of that name."""
    with tempfile.TemporaryDirectory() as directory:
        machine.materialise(machine.find(name), Path(directory) / name)
        return discover(SysTree(Path(directory) / name))


def alone(device: Device) -> Inventory:
    """A node of *device* only, on which nothing but CUs runs out."""
    pool = Pool(device.pool, device.pool, device.vram_bytes, device.grantable_bytes)
    return Inventory(None, (replace(device, queue_slots=1 << 20, shares=None, peers=()),), (pool,))


@dataclass
class Holdings:
    """The slices held on one node, by the lease that has them."""

    of: dict[int, tuple[PlacedSlice, ...]] = field(default_factory=dict)

    @property
    def slices(self) -> tuple[HeldSlice, ...]:
        return tuple(
            HeldSlice(0, lease, 0, placed, SliceState.HELD)
            for lease, slices in self.of.items()
            for placed in slices
        )

    def take(self, lease: int, slices: Sequence[PlacedSlice]) -> None:
        self.of[lease] = tuple(slices)

    def give_back(self, lease: int) -> None:
        self.of.pop(lease, None)
