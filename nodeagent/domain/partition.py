"""Compute partition modes of cards: how many devices each makes, and which a site wants where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nodeagent.domain.device import Device, DeviceState, Inventory
from nodeagent.domain.errors import InvalidField
from nodeagent.domain.selectors import is_called

WHOLE = "SPX"
_DEVICES_IN = {WHOLE: 1, "DPX": 2, "TPX": 3, "QPX": 4}  # CPX: one for each XCC


@dataclass(frozen=True, slots=True)
class Modes:
    """What a card's files say; None and empty where it has no such file.

    *alloc* is CAPPING where the kernel holds each partition to its even share of VRAM, for what KFD gives
    (not for the render node); ALL where each may take everything.
    """

    compute: str | None = None
    computes: tuple[str, ...] = ()  # what may be written now, in the memory mode that it has
    memory: str | None = None
    memories: tuple[str, ...] = ()  # shown, never written: a change takes a reload of the driver
    alloc: str | None = None


@dataclass(frozen=True, slots=True)
class Card:
    """A physical GPU with the devices that it is divided into now."""

    pci: str
    product: str
    gfx: str | None
    modes: Modes
    devices: tuple[Device, ...] = ()
    switching: str | None = None  # the mode that it is being switched to

    @property
    def xccs(self) -> int:
        return sum(one.geometry.xccs for one in self.devices if one.geometry)


@dataclass(frozen=True, slots=True)
class Switch:
    """A change of mode that has begun: written down before the kernel is asked, until it is over."""

    pci: str
    before: str
    to: str
    xccs: int  # of the whole card
    uid: int | None  # None: the agent, for the site's choice
    at_ns: int  # boot time

    @classmethod
    def of(cls, told: Any) -> Switch:
        """A kept one. Raises TypeError or ValueError for what is none."""
        switch = cls(**told)
        if not all(isinstance(one, str) for one in (switch.pci, switch.before, switch.to)):
            raise ValueError(f"{told!r} is no switch")
        return switch


def cards(inventory: Inventory) -> Mapping[str, tuple[Device, ...]]:
    """The devices that are there, by their card's PCI address."""
    found: dict[str, list[Device]] = {}
    for device in inventory.devices:
        if device.pci and device.state is not DeviceState.GONE:
            found.setdefault(device.pci, []).append(device)
    return {pci: tuple(devices) for pci, devices in found.items()}


def devices_in(mode: str, xccs: int) -> int:
    """How many devices a card of *xccs* XCCs is in *mode*."""
    return _DEVICES_IN.get(mode, xccs)


def mode_of(text: str, card: Card, field: str = "mode") -> str:
    """The mode that *text* says, as the kernel writes it.

    Raises:
        InvalidField: *card* has no modes, or not this one now.
    """
    if card.modes.compute is None:
        raise InvalidField(field, f"the card {card.pci} has no compute partition modes")
    mode = text.strip().upper()
    if mode not in card.modes.computes:
        has = ", ".join(card.modes.computes) or "none that its available_compute_partition lists"
        with_memory = f" in {card.modes.memory}" if card.modes.memory else ""
        raise InvalidField(
            field, f"{text!r} is no mode that the card {card.pci} can take; it has {has}{with_memory}"
        )
    return mode


@dataclass(frozen=True, slots=True)
class Choice:
    """A card and the mode that the site wants it in; *wrong*: why it cannot be had."""

    card: Card
    mode: str
    wrong: str | None = None

    @property
    def met(self) -> bool:
        return self.wrong is None and self.card.modes.compute == self.mode and not self.card.switching


def choices(wanted: Mapping[str, str], found: Sequence[Card]) -> Iterator[Choice]:
    """Of each card that *wanted* names, by PCI address before product: what it is to be.

    Keys are PCI addresses, and products, models, targets or globs of these as `--type` has them.
    """
    for card in found:
        text = _wanted(wanted, card)
        if text is None:
            continue
        try:
            yield Choice(card, mode_of(text, card))
        except InvalidField as fault:
            yield Choice(card, text.upper(), fault.why)


def _wanted(wanted: Mapping[str, str], card: Card) -> str | None:
    named = sorted((key for key in wanted if _names(key, card)), key=lambda key: not _is_address(key, card))
    return wanted[named[0]] if named else None


def _names(key: str, card: Card) -> bool:
    return _is_address(key, card) or is_called(card.product, card.gfx, key)


def _is_address(key: str, card: Card) -> bool:
    return key.strip().casefold() in (card.pci.casefold(), card.pci.casefold().partition(":")[2])
