"""Reads what a card's PCI and RAS files say of its health. A card that sleeps is let sleep.

``ras/<block>_err_count`` holds ``ue: N`` and ``ce: N`` lines. A link is told of by its lower end, a card and
the upper port of each switch above it: ``{current,max}_link_{width,speed}`` (drivers/pci/pci-sysfs.c).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nodeagent.adapters.discovery import APU_TARGETS
from nodeagent.adapters.drm import PCI, PCI_ADDRESS
from nodeagent.adapters.sensors import awake
from nodeagent.adapters.sysfs import SysTree, Unread
from nodeagent.domain.vitals import LinkEnd, Vitals

_SPEED = re.compile(r"([0-9]+(?:\.[0-9]+)?) GT/s")
_COUNT = re.compile(r"^(ue|ce): ([0-9]{1,19})$", re.MULTILINE)


def read_vitals(tree: SysTree, pci: str, gfx: str | None = None) -> Vitals | None:
    """The vitals of the card at *pci*; None where it sleeps. An APU hangs on no link."""
    directory = f"{PCI}/{pci}"
    if not awake(tree, directory):
        return None
    counts = {block: uncorrectable for block, (uncorrectable, _) in ras_counts(tree, pci)}
    ends = () if gfx in APU_TARGETS else path(tree, pci)[::2]
    return Vitals(counts, tuple(link_end(tree, address) for address in ends))


def path(tree: SysTree, pci: str) -> list[str]:
    """The card and the bridges above it, from the card up."""
    target = tree.link(f"{PCI}/{pci}") or pci
    return [part for part in reversed(target.split("/")) if PCI_ADDRESS.fullmatch(part)]


def link_end(tree: SysTree, address: str) -> LinkEnd:
    """The link above the device at *address*, with None for what it does not tell."""
    where = f"{PCI}/{address}"
    width, most = (_width(tree, f"{where}/{which}_link_width") for which in ("current", "max"))
    speed, most_speed = (_speed(tree, f"{where}/{which}_link_speed") for which in ("current", "max"))
    return LinkEnd(address, width, most, speed, most_speed)


def ras_counts(tree: SysTree, pci: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """By block: uncorrectable errors, corrected ones."""
    where = f"{PCI}/{pci}/ras"
    names = tree.names(where)
    for name in () if isinstance(names, Unread) else names:
        block, counts, _ = name.partition("_err_count")
        text = tree.text(f"{where}/{name}") if counts else None
        if isinstance(text, str):
            told = dict(_COUNT.findall(text))
            yield block, (int(told.get("ue", 0)), int(told.get("ce", 0)))


def _width(tree: SysTree, path: str) -> int | None:
    number = tree.number(path)
    return (number or None) if isinstance(number, int) else None


def _speed(tree: SysTree, path: str) -> float | None:
    text = tree.text(path)
    found = _SPEED.match(text) if isinstance(text, str) else None
    return float(found[1]) if found else None
