"""What a site says of single devices: for whom each is, and how many leases may share it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from nodeagent.domain.device import Device
from nodeagent.domain.reserved import Reserved
from nodeagent.domain.selectors import is_type, names_device

T = TypeVar("T")

SHARES = 10
SHARES_ON = {"gfx12": 2}  # by the beginning of the target; HAMi measured 83 % less with two on an RX 9060 XT
_GLOB = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class DeviceRules:
    """Tables by device, product, model or target, or a glob of these; see `chosen`."""

    shares: Mapping[str, int] = field(default_factory=dict)
    reserved: Mapping[str, Reserved] = field(default_factory=dict)

    def on(self, device: Device) -> Device:
        """*device* with what the rules say of it."""
        shares = chosen(self.shares, device)
        return replace(
            device,
            shares=usual_shares(device.gfx) if shares is None else shares,
            reserved=chosen(self.reserved, device),
        )


def usual_shares(gfx: str | None) -> int:
    """How many leases may share a device of this target where the site says nothing."""
    return next((most for start, most in SHARES_ON.items() if (gfx or "").startswith(start)), SHARES)


def chosen(table: Mapping[str, T], device: Device) -> T | None:
    """What *table* has for *device*: by its own name before its product or target, by these before a glob.

    Of several that are as near the first one. Keys that name nothing of this node mean nothing: a site
    writes one file for all of its nodes.
    """
    found = [(rank, value) for key, value in table.items() if (rank := _rank(key, device)) is not None]
    return min(found, key=lambda one: one[0])[1] if found else None


def _rank(key: str, device: Device) -> int | None:
    if names_device(device, key):
        return 0
    if is_type(device, key):
        return 2 if _GLOB & set(key) else 1
    return None
