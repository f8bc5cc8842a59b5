"""What slices that are not free hold of a device and of its pool. Old, dirty and quarantined ones count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nodeagent.domain.cuset import CuSet
from nodeagent.domain.device import Device
from nodeagent.domain.lease import HeldSlice, SliceState


@dataclass(frozen=True, slots=True)
class Usage:
    """The slices on one device. CUs, bytes and queue slots count per epoch, the pool's bytes over all."""

    current: tuple[HeldSlice, ...]  # on the device in its present epoch
    present: tuple[HeldSlice, ...]  # on the device in any epoch: what an exclusive slice must wait for
    pooled: tuple[HeldSlice, ...]  # on the device's pool, from whatever device
    pool_bytes: int  # of those

    @property
    def cus(self) -> CuSet:
        bits = 0
        for one in self.current:
            bits |= one.placed.cus.bits
        return CuSet(bits)

    @property
    def shared_cus(self) -> CuSet | None:
        """The device's one shared set, where a slice on it lives."""
        return next((one.placed.cus for one in self.current if one.placed.shared), None)

    @property
    def vram_bytes(self) -> int:
        return sum(one.placed.vram_bytes for one in self.current)

    @property
    def queue_slots(self) -> int:
        return sum(one.placed.queue_slots for one in self.current)

    def load(self, device: Device) -> float:
        """How full the device is: its shares of CUs and VRAM in use, added."""
        return len(self.cus) / max(1, device.cus) + self.vram_bytes / max(1, device.grantable_bytes)


def usage_by_device(devices: Iterable[Device], held: Iterable[HeldSlice]) -> Mapping[str, Usage]:
    """The usage of each of *devices* by its key, in one pass over *held*: a node may have 64 of them."""
    on_device, in_pool = defaultdict(list), defaultdict(list)
    for one in held:
        on_device[one.placed.device].append(one)
        in_pool[one.placed.pool].append(one)
    pool_bytes = {pool: sum(one.placed.vram_bytes for one in pooled) for pool, pooled in in_pool.items()}
    return {
        device.key: Usage(
            current=tuple(one for one in on_device[device.key] if one.placed.epoch == device.epoch),
            present=tuple(on_device[device.key]),
            pooled=tuple(in_pool[device.pool]),
            pool_bytes=pool_bytes.get(device.pool, 0),
        )
        for device in devices
    }


def leases_of(slices: Iterable[HeldSlice]) -> tuple[int, ...]:
    return tuple(sorted({one.lease for one in slices}))


def earliest_end(slices: Iterable[HeldSlice]) -> int | None:
    """Boot time at which the first of *slices* ends, where any end is known."""
    return min((one.ends_ns for one in slices if one.ends_ns is not None), default=None)


def holders(slices: Sequence[HeldSlice]) -> str:
    """``lease 7, lease 9 (quarantined)``; a slice on its way back still holds what it held."""
    states: dict[int, SliceState] = {}
    for one in slices:
        if one.state is not SliceState.HELD or one.lease not in states:
            states[one.lease] = one.state
    return ", ".join(
        f"lease {lease}" + (f" ({state})" if state is not SliceState.HELD else "")
        for lease, state in sorted(states.items())
    )
