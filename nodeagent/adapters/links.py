"""How a card hangs on PCI Express: ``{current,max}_link_{width,speed}`` (drivers/pci/pci-sysfs.c)."""

from __future__ import annotations

import re

from nodeagent.adapters.drm import PCI
from nodeagent.adapters.sensors import awake
from nodeagent.adapters.sysfs import SysTree
from nodeagent.domain.measures import PciLink

_SPEED = re.compile(r"([0-9]{1,3}(?:\.[0-9])?) GT/s\b")


def read_link(tree: SysTree, pci: str) -> PciLink | None:
    """The link of the card at *pci*; None where none is known, or it sleeps: a look would wake it."""
    directory = f"{PCI}/{pci}"
    if not awake(tree, directory):
        return None
    width, most = tree.number(f"{directory}/current_link_width"), tree.number(f"{directory}/max_link_width")
    if not isinstance(width, int) or not isinstance(most, int) or not 0 < width <= most <= 32:
        return None
    return PciLink(
        width,
        most,
        _speed(tree, f"{directory}/current_link_speed"),
        _speed(tree, f"{directory}/max_link_speed"),
    )


def _speed(tree: SysTree, path: str) -> float | None:
    text = tree.text(path)
    found = _SPEED.match(text) if isinstance(text, str) else None
    return float(found[1]) if found else None
