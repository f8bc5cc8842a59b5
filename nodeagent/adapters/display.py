"""Whether a GPU drives a display: its user's session draws on it without any lease."""

from __future__ import annotations

import re

from nodeagent.adapters.drm import PCI
from nodeagent.adapters.sysfs import SysTree, Unread

_CARD = re.compile(r"card[0-9]+")
_CONNECTOR = re.compile(r"card[0-9]+-.+")


def lit_connector(tree: SysTree, pci: str) -> str | None:
    """A connector of the card at *pci* that shows a picture (``card0-DP-1``); None where there is none."""
    cards = _names(tree, f"{PCI}/{pci}/drm", _CARD)
    for card in cards:
        for connector in _names(tree, f"{PCI}/{pci}/drm/{card}", _CONNECTOR):
            at = f"{PCI}/{pci}/drm/{card}/{connector}"
            if tree.text(f"{at}/status") == "connected" and tree.text(f"{at}/enabled") == "enabled":
                return connector
    return None


def _names(tree: SysTree, path: str, pattern: re.Pattern[str]) -> list[str]:
    names = tree.names(path)
    return [] if isinstance(names, Unread) else sorted(name for name in names if pattern.fullmatch(name))
