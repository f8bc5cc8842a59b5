"""A card's sensors: attributes of amdgpu and of its hwmon. A card that sleeps is let sleep.

Files as in drivers/gpu/drm/amd/pm/amdgpu_pm.c: ``gpu_busy_percent``, ``hwmon*/temp1_input`` (m°C),
``power1_average`` or, on newer cards, ``power1_input`` (µW). Reading one of these may resume the card.
"""

from __future__ import annotations

from nodeagent.adapters.drm import PCI, vram_used
from nodeagent.adapters.sysfs import SysTree, Unread
from nodeagent.domain.measures import Sensors

# What power/runtime_status says of a card that a read does not resume.
_AWAKE = frozenset({"active", "unsupported"})


def read_sensors(tree: SysTree, pci: str) -> Sensors:
    """The readings of the card at *pci*."""
    directory = f"{PCI}/{pci}"
    used = vram_used(tree, pci)
    used_bytes = used if isinstance(used, int) else None
    if not awake(tree, directory):
        return Sensors(used_bytes)
    hwmon = _hwmon(tree, directory)
    watts = _scaled(tree, hwmon, ("power1_average", "power1_input"), 1e6)
    busy = tree.number(f"{directory}/gpu_busy_percent")
    return Sensors(
        used_bytes,
        busy if isinstance(busy, int) and 0 <= busy <= 100 else None,
        _scaled(tree, hwmon, ("temp1_input",), 1e3),
        watts,
    )


def awake(tree: SysTree, directory: str) -> bool:
    """Whether the card at *directory* runs, so that looking at it wakes nobody."""
    status = tree.text(f"{directory}/power/runtime_status")
    return isinstance(status, Unread) or status in _AWAKE


def _hwmon(tree: SysTree, directory: str) -> str | None:
    names = tree.names(f"{directory}/hwmon")
    found = () if isinstance(names, Unread) else names
    return f"{directory}/hwmon/{found[0]}" if found else None


def _scaled(tree: SysTree, hwmon: str | None, names: tuple[str, ...], unit: float) -> float | None:
    for name in names if hwmon else ():
        value = tree.number(f"{hwmon}/{name}")
        if isinstance(value, int):
            return value / unit
    return None
