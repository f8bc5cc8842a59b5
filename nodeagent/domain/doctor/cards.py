"""Checks of the cards as PCI devices: links, errors, memory windows. What sleeps is not woken."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from nodeagent.domain.doctor.check import Verdict, check, either, fail, ok, unseen, warn
from nodeagent.domain.vitals import LinkEnd

AREA = "cards"
_MANY_CORRECTED = 1000  # corrected errors of a link; a few come with any reset
_MANY_CE = 1000  # corrected memory errors
_ACS_REDIRECT = 0x04 | 0x08  # request and completion redirect, PCIe base specification 7.7.12.3


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU's PCI device. *asleep*: in runtime suspend, so all that would wake it was left unread."""

    pci: str
    gfx: str | None = None
    apu: bool = False
    asleep: bool = False
    links: tuple[LinkEnd, ...] = ()
    corrected: int | None = None  # AER counters since boot
    nonfatal: int | None = None
    fatal: int | None = None
    replays: int | None = None
    ras: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # by block: uncorrectable, corrected
    bad_pages: int = 0
    vram_bytes: int | None = None
    visible_bytes: int | None = None
    numa_node: int | None = None
    iommu: str | None = None  # the domain's type, "DMA", "identity"; None: no IOMMU in use
    acs: Mapping[str, int] | None = field(
        default_factory=dict
    )  # control bits by bridge; None: root alone sees


@dataclass(frozen=True, slots=True)
class Cards:
    """All cards of the node."""

    cards: tuple[Card, ...]
    numa_nodes: int = 1
    dumps: tuple[str, ...] = ()  # of GPU resets, by PCI address

    @property
    def awake(self) -> tuple[Card, ...]:
        return tuple(card for card in self.cards if not card.asleep)

    @property
    def discrete(self) -> tuple[Card, ...]:
        return tuple(card for card in self.cards if not card.apu)


def _awake(cards: Cards, offenders: list[str], bad: Callable[[str], Verdict], good: str) -> Verdict:
    """The verdict on the cards that are awake, and a word on those that are not."""
    if offenders:
        return either(offenders, bad, good)
    asleep = len(cards.cards) - len(cards.awake)
    if asleep:
        return unseen(f"{asleep} of {len(cards.cards)} cards are suspended, and not woken for this")
    return ok(good)


def _none(cards: Cards) -> str | None:
    return None if cards.cards else "there is no card"


@check(
    Cards,
    AREA,
    fix="reseat the card or its riser, look at the slot's lanes and bifurcation in the BIOS",
    issue="nokyan/resources#512",
    without=_none,
)
def pcie_width(cards: Cards) -> Verdict:
    """Every PCIe link between a card and its processor is as wide as it can be."""
    offenders = [
        f"{card.pci}: x{link.width} of x{link.most_width} at {link.address}"
        for card, link in _links(cards)
        if link.narrow
    ]
    return _awake(cards, offenders, warn, "full width")


@check(
    Cards,
    AREA,
    fix="reseat the card or its riser, look for a limit of the slot's speed in the BIOS, then at the cable",
    issue="ROCm/legacy-rocm-build#2020",
    without=_none,
)
def pcie_speed(cards: Cards) -> Verdict:
    """Every PCIe link of a card that does not slow down when idle runs at full speed."""
    offenders = [
        f"{card.pci}: {link.speed:g} of {link.most_speed:g} GT/s at {link.address}"
        for card, link in _links(cards)
        if link.slow(card.gfx)
    ]
    return _awake(cards, offenders, warn, "full speed, as far as it is told when idle")


@check(
    Cards,
    AREA,
    fix="drain the card (nodeagent drain), reseat it, change riser or cable; dmesg has the errors",
    issue="ROCm/tensorflow-upstream#180",
    without=_none,
)
def pcie_errors(cards: Cards) -> Verdict:
    """The kernel counted no uncorrected PCIe errors of a card, and few corrected ones (AER)."""
    fatal = [f"{card.pci}: {card.fatal} fatal errors" for card in cards.awake if card.fatal]
    if fatal:
        return either(fatal, fail, "")
    lesser = [f"{card.pci}: {card.nonfatal} uncorrected errors" for card in cards.awake if card.nonfatal]
    lesser += [
        f"{card.pci}: {card.corrected} corrected errors"
        for card in cards.awake
        if (card.corrected or 0) > _MANY_CORRECTED
    ]
    return _awake(cards, lesser, warn, "none to speak of")


@check(
    Cards,
    AREA,
    fix="reseat the card, change riser or cable; a count that grows means a link that loses packets",
    issue="ROCm/legacy-rocm-build#1541",
    without=_none,
)
def pcie_replays(cards: Cards) -> Verdict:
    """No card had to send packets over its link again (pcie_replay_count)."""
    offenders = [f"{card.pci}: {card.replays} replays" for card in cards.awake if card.replays]
    return _awake(cards, offenders, warn, "none")


@check(
    Cards,
    AREA,
    fix="switch on Above 4G decoding and Resizable BAR in the BIOS",
    issue="ROCm/legacy-rocm-build#579",
    without=_none,
)
def large_bar(cards: Cards) -> Verdict:
    """The processor, and other cards, reach all of each discrete card's VRAM (large BAR)."""
    offenders = [
        f"{card.pci}: {(card.visible_bytes or 0) >> 20} of {card.vram_bytes >> 20} MiB"
        for card in cards.discrete
        if card.vram_bytes and card.visible_bytes is not None and card.visible_bytes < card.vram_bytes
    ]
    return either(offenders, warn, "all of it")


@check(
    Cards,
    AREA,
    fix="boot with iommu=pt, which maps devices' memory one to one",
    issue="ROCm/rccl#1129",
    without=_none,
)
def iommu(cards: Cards) -> Verdict:
    """Where several cards talk to each other the IOMMU passes them through."""
    if len(cards.discrete) < 2:
        return ok("fewer than two discrete cards")
    offenders = [
        f"{card.pci}: {card.iommu}" for card in cards.discrete if card.iommu not in (None, "identity")
    ]
    return either(offenders, warn, "passes through, or is off")


@check(
    Cards,
    AREA,
    fix="switch ACS off in the BIOS, or boot with pci=disable_acs_redir=<the bridges>; on a host of virtual "
    "machines leave it on",
    issue="NVIDIA/nccl#2079",
    without=_none,
)
def acs(cards: Cards) -> Verdict:
    """No bridge above several cards sends their traffic to each other by the processor (ACS redirect)."""
    if len(cards.discrete) < 2:
        return ok("fewer than two discrete cards")
    if any(card.acs is None for card in cards.discrete):
        return unseen("only root may read it")
    bridges = {name: bits for card in cards.discrete for name, bits in (card.acs or {}).items()}
    offenders = [f"bridge {name}" for name, bits in sorted(bridges.items()) if bits & _ACS_REDIRECT]
    return _awake(cards, offenders, warn, "none does")


@check(
    Cards,
    AREA,
    fix="switch on the NUMA options of the BIOS (ACPI SRAT, NPS), or leave --numa-bind alone on this node",
    issue="llnl/mpibind#45",
    without=_none,
)
def numa_node(cards: Cards) -> Verdict:
    """On nodes of several NUMA nodes each card says which is its own."""
    lost = [card.pci for card in cards.cards if card.numa_node is None and cards.numa_nodes > 1]
    return either([f"{pci} does not" for pci in lost], warn, f"{cards.numa_nodes} NUMA nodes")


@check(
    Cards,
    AREA,
    fix="drain the card (nodeagent drain --reason RAS), reset or replace it: its results cannot be trusted",
    issue="NVIDIA/k8s-device-plugin#267",
    without=_none,
)
def ras_uncorrectable(cards: Cards) -> Verdict:
    """No block of a card had an error that could not be corrected (RAS)."""
    offenders = [
        f"{card.pci}: {block} {counts[0]}"
        for card in cards.awake
        for block, counts in sorted(card.ras.items())
        if counts[0]
    ]
    return _awake(cards, offenders, fail, "none")


@check(
    Cards,
    AREA,
    fix="watch whether it grows; memory whose errors grow is about to fail: have the card replaced",
    issue="ROCm/legacy-rocm-build#3766",
    without=_none,
)
def ras_corrected(cards: Cards) -> Verdict:
    """No block of a card has thousands of corrected errors (RAS)."""
    offenders = [
        f"{card.pci}: {block} {counts[1]}"
        for card in cards.awake
        for block, counts in sorted(card.ras.items())
        if counts[1] > _MANY_CE
    ]
    return _awake(cards, offenders, warn, "few or none")


@check(
    Cards,
    AREA,
    fix="have the card replaced before bad_page_threshold takes it out of service by itself",
    issue="ROCm/legacy-rocm-build#5719",
    without=_none,
)
def bad_pages(cards: Cards) -> Verdict:
    """No card has retired pages of its VRAM."""
    offenders = [f"{card.pci}: {card.bad_pages}" for card in cards.awake if card.bad_pages]
    return _awake(cards, offenders, warn, "none")


@check(
    Cards,
    AREA,
    fix="read the dump (it goes after five minutes); `gpulease events` says whose lease was lost",
    issue="ROCm/rocm-systems#8504",
    without=_none,
)
def recent_resets(cards: Cards) -> Verdict:
    """No GPU was reset in the last minutes (device core dumps)."""
    return either([f"{pci} was" for pci in cards.dumps], warn, "none")


def _links(cards: Cards) -> Iterator[tuple[Card, LinkEnd]]:
    return ((card, link) for card in cards.awake if not card.apu for link in card.links)


CHECKS = (
    pcie_width,
    pcie_speed,
    pcie_errors,
    pcie_replays,
    large_bar,
    iommu,
    acs,
    numa_node,
    ras_uncorrectable,
    ras_corrected,
    bad_pages,
    recent_resets,
)
