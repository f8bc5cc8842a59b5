"""What a card's own files say of its health, what is known of it in this boot, and what follows from both.

RAS counts are the driver's, since it was loaded (drivers/gpu/drm/amd/amdgpu/amdgpu_ras.c, ``*_err_count``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nodeagent.domain.device import Device, DeviceState, Inventory

FULL_SPEED_WHEN_IDLE = "gfx9"  # the beginning of such targets; client cards slow down, which says nothing


@dataclass(frozen=True, slots=True)
class LinkEnd:
    """A link on the way from a card to the processor, as the lower end says. Speeds in GT/s."""

    address: str
    width: int | None
    most_width: int | None
    speed: float | None
    most_speed: float | None

    @property
    def narrow(self) -> bool:
        """Whether it lost lanes."""
        return self.width is not None and self.most_width is not None and self.width < self.most_width

    def slow(self, gfx: str | None) -> bool:
        """Whether it is slower than it could be, on a card of a target that keeps its speed when idle."""
        known = self.speed is not None and self.most_speed is not None and self.speed < self.most_speed
        return known and (gfx or "").startswith(FULL_SPEED_WHEN_IDLE)


@dataclass(frozen=True, slots=True)
class Vitals:
    """One look at a card. *uncorrectable*: RAS errors by block; a block that could not be read is not in."""

    uncorrectable: Mapping[str, int] = field(default_factory=dict)
    links: tuple[LinkEnd, ...] = ()

    def degraded(self, gfx: str | None) -> str | None:
        """What its way to the processor lacks, where that lacks anything."""
        return "; ".join(_lacks(self.links, gfx)) or None


@dataclass(frozen=True, slots=True)
class CardRecord:
    """What is known of a card in this boot. *acknowledged*: of the errors, those that an administrator took
    note of; *link*: what its way to the processor lacks.
    """

    uncorrectable: Mapping[str, int] = field(default_factory=dict)
    acknowledged: Mapping[str, int] = field(default_factory=dict)
    link: str | None = None

    @classmethod
    def of(cls, told: Any) -> CardRecord:
        """A kept one. Raises TypeError or ValueError for what is none."""
        record = cls(**told)
        counts = [*record.uncorrectable.items(), *record.acknowledged.items()]
        if not all(isinstance(block, str) and type(count) is int for block, count in counts):
            raise ValueError(f"{told!r} is no record of a card")
        if not isinstance(record.link, str | None):
            raise TypeError(f"{record.link!r} says nothing of a link")
        return record

    def after(self, look: Vitals, gfx: str | None) -> CardRecord:
        """This record with what *look* shows. What could not be read is as it was.

        Counts that fell were begun anew with the driver, so what was acknowledged is not of these.
        """
        counts = {**self.uncorrectable, **look.uncorrectable}
        held = {
            block: count
            for block, count in self.acknowledged.items()
            if counts.get(block, 0) >= self.uncorrectable.get(block, 0)
        }
        return CardRecord(counts, held, look.degraded(gfx) if look.links else self.link)

    def noted(self) -> CardRecord:
        """This record with all errors so far acknowledged."""
        return replace(self, acknowledged=dict(self.uncorrectable))

    @property
    def errors(self) -> Mapping[str, int]:
        """Uncorrectable errors that nobody acknowledged, by block."""
        left = {block: count - self.acknowledged.get(block, 0) for block, count in self.uncorrectable.items()}
        return {block: count for block, count in sorted(left.items()) if count > 0}


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    """Of what a card is not granted from; else it is only told of."""

    refuse_uncorrectable: bool = True
    refuse_degraded: bool = False

    def refuses(self, record: CardRecord) -> bool:
        return bool((self.refuse_uncorrectable and record.errors) or (self.refuse_degraded and record.link))

    def mark(self, inventory: Inventory, records: Mapping[str, CardRecord]) -> Inventory:
        """*inventory* with what *records*, by PCI address, say of its devices.

        A device that is not granted from becomes unhealthy. One that is healthy all the same has a reason.
        """
        said = {pci: why for pci, record in records.items() if (why := complaint(pci, record))}
        if not said:
            return inventory
        return replace(
            inventory,
            devices=tuple(
                self._marked(device, records[device.pci], said[device.pci])
                if device.pci in said and device.state is DeviceState.HEALTHY
                else device
                for device in inventory.devices
            ),
        )

    def _marked(self, device: Device, record: CardRecord, why: str) -> Device:
        state = DeviceState.UNHEALTHY if self.refuses(record) else device.state
        return replace(device, state=state, reason=why)


def complaint(pci: str, record: CardRecord) -> str | None:
    """What is wrong with a card and what to do, for a person; None where nothing is."""
    return "; ".join(_wrong(pci, record)) or None


def _wrong(pci: str, record: CardRecord) -> Iterator[str]:
    if record.errors:
        counts = ", ".join(f"{block} {count}" for block, count in record.errors.items())
        yield (
            f"uncorrectable errors (RAS): {counts}: have the card reset or replaced;"
            f" `nodeagent clear {pci}` takes these as known"
        )
    if record.link:
        yield f"PCI Express below its capability: {record.link}: reseat the card or its riser"


def _lacks(links: tuple[LinkEnd, ...], gfx: str | None) -> Iterator[str]:
    for link in links:
        if link.narrow:
            yield f"x{link.width} of x{link.most_width} at {link.address}"
        if link.slow(gfx):
            yield f"{link.speed:g} of {link.most_speed:g} GT/s at {link.address}"
