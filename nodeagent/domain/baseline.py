"""Idle baselines: what a pool of VRAM uses when nobody works on it. Never granted; proofs count from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nodeagent.domain.device import Inventory

LOOKS = 3  # that must agree before a baseline moves
GRAIN = 16 << 20  # bytes; what a driver keeps beside buffers comes and goes by less


@dataclass(frozen=True, slots=True)
class Baseline:
    """What one pool used, bytes, with its devices in these epochs; void in any other."""

    epochs: Mapping[str, int]  # by device key
    idle_bytes: int

    def holds_in(self, inventory: Inventory) -> bool:
        """Whether no device of *inventory* is in another epoch than it was then."""
        return all(self.epochs.get(one.key, one.epoch) == one.epoch for one in inventory.devices)

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Baseline:
        """The baseline of these fields. Raises ValueError, or what their absence raises."""
        idle, epochs = told["idle_bytes"], told["epochs"]
        if not isinstance(idle, int) or idle < 0:
            raise ValueError(f"idle_bytes: {idle!r} is no size")
        return cls({str(key): int(epoch) for key, epoch in epochs.items()}, idle)


def epochs_of(pool: str, inventory: Inventory) -> dict[str, int]:
    """The epochs of the devices that draw on *pool*."""
    return {device.key: device.epoch for device in inventory.devices if device.pool == pool}


def settled(known: int, readings: Sequence[int]) -> int:
    """*known* moved as far as all of *readings* agree on, which are those of the last looks.

    One look may see memory whose process is gone already, or not see what a new process has taken.
    """
    if len(readings) < LOOKS:
        return known
    moved = min(max(known, min(readings)), max(readings))
    return moved if abs(moved - known) >= GRAIN else known
