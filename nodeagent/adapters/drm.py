"""What DRM and PCI sysfs say about a GPU: its PCI address, VRAM, names and partition modes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeVar

from nodeagent.adapters.sysfs import Problem, SysTree, Unread

T = TypeVar("T")
DRM = "sys/class/drm"
PCI = "sys/bus/pci/devices"
PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
NO_NUMA_NODE = -1
NUMA_LIMIT = 4096
TEXT_LIMIT = 200  # characters of a product name or serial number
COMPUTE_MODES = ("SPX", "DPX", "TPX", "QPX", "CPX")
_MEMORY_MODE = re.compile(r"NPS[1-9]")


@dataclass(frozen=True, slots=True)
class DrmDevice:
    """The attributes of one GPU's PCI device; all None where there is none to read."""

    pci: str | None = None  # from the render node's `device` link; None for a platform partition device
    vram_bytes: int | None = None
    unique_id: int = 0
    product: str | None = None
    serial: str | None = None
    card: str | None = None  # "card0"
    device_id: int | None = None
    numa_node: int | None = None
    compute_partition: str | None = None
    memory_partition: str | None = None
    faults: tuple[str, ...] = ()


def pci_address(tree: SysTree, render_node: str | None) -> str | None:
    """The PCI device that *render_node* hangs under; None for the platform devices of partitions 1 and up."""
    if render_node is None:
        return None
    target = tree.link(f"{DRM}/{render_node}/device")
    if target is None:
        return _slot_name(tree, f"{DRM}/{render_node}/device")
    name = target.rpartition("/")[2]
    return name if PCI_ADDRESS.fullmatch(name) else None


def read(tree: SysTree, render_node: str | None, located: str | None) -> DrmDevice:
    """What sysfs says of *render_node*; a partition's modes stand at *located*, its card's PCI address."""
    pci = pci_address(tree, render_node)
    if not pci and not located:
        return DrmDevice()
    directory = f"{PCI}/{pci or located}"
    if pci and not tree.exists(directory):  # a copy of /sys/class alone
        directory = f"{DRM}/{render_node}/device"
    reader = _Attributes(tree, directory)
    # A partition's own render node has no attributes, and its card's serial and id are not its own.
    own = pci is not None
    return DrmDevice(
        pci=pci,
        vram_bytes=reader.number("mem_info_vram_total"),
        unique_id=(reader.hexadecimal("unique_id") or 0) if own else 0,
        product=reader.text("product_name"),
        serial=reader.text("serial_number") if own else None,
        card=_card(tree, reader.directory if own else f"{DRM}/{render_node}/device"),
        device_id=reader.hexadecimal("device"),
        numa_node=reader.numa_node(),
        compute_partition=reader.mode("current_compute_partition", re.compile("|".join(COMPUTE_MODES))),
        memory_partition=reader.mode("current_memory_partition", _MEMORY_MODE),
        faults=tuple(reader.faults),
    )


def vram_used(tree: SysTree, pci: str) -> int | Unread:
    """The card's used VRAM in bytes, whoever uses it."""
    path = f"{PCI}/{pci}/mem_info_vram_used"
    used = tree.number(path)
    if isinstance(used, int) and used < 0:  # would make more grantable than there is
        return Unread(path, Problem.GARBLED, "is negative")
    return used


class _Attributes:
    """Reads one PCI device's attributes and keeps what was wrong with them.

    A missing file is normal everywhere. An attribute that decides what may be granted must also be readable
    and not empty: a mode that cannot be read is not "no partitions".
    """

    def __init__(self, tree: SysTree, directory: str) -> None:
        self.directory = directory
        self.faults: list[str] = []
        self._tree = tree

    def number(self, name: str) -> int | None:
        value = self._needed(self._tree.number(f"{self.directory}/{name}"))
        if value is not None and value < 0:
            self.faults.append(f"/{self.directory}/{name}: is negative")
            return None
        return value

    def hexadecimal(self, name: str) -> int | None:
        return self._optional(self._tree.hexadecimal(f"{self.directory}/{name}"))

    def text(self, name: str) -> str | None:
        text = self._optional(self._tree.text(f"{self.directory}/{name}"))
        if text is not None and (len(text) > TEXT_LIMIT or not text.isprintable()):
            self.faults.append(
                f"/{self.directory}/{name}: is not one line of at most {TEXT_LIMIT} characters"
            )
            return None
        return text

    def mode(self, name: str, known: re.Pattern[str]) -> str | None:
        text = self._needed(self._tree.text(f"{self.directory}/{name}"))
        if text is not None and not known.fullmatch(text.upper()):
            self.faults.append(f"/{self.directory}/{name}: unknown mode {text[:20]!r}")
            return None
        return text.upper() if text else None

    def numa_node(self) -> int | None:
        number = self._optional(self._tree.number(f"{self.directory}/numa_node"))
        if number is None or number == NO_NUMA_NODE:
            return None
        if not 0 <= number < NUMA_LIMIT:
            self.faults.append(f"/{self.directory}/numa_node: no such NUMA node {number}")
            return None
        return number

    def _needed(self, value: T | Unread) -> T | None:
        if isinstance(value, Unread):
            if value.problem is not Problem.MISSING:
                self.faults.append(value.reason)
            return None
        return value

    def _optional(self, value: T | Unread) -> T | None:
        if isinstance(value, Unread):
            if value.problem is Problem.GARBLED:
                self.faults.append(value.reason)
            return None
        return value


def _card(tree: SysTree, directory: str) -> str | None:
    """The name of the primary node, whose number SMI tools print."""
    names = tree.names(f"{directory}/drm")
    if isinstance(names, Unread):
        return None
    return next((name for name in names if re.fullmatch(r"card[0-9]{1,4}", name)), None)


def _slot_name(tree: SysTree, directory: str) -> str | None:
    """The PCI address in a device's uevent file: copies made with followed links have no link to read."""
    text = tree.text(f"{directory}/uevent")
    found = None if isinstance(text, Unread) else re.search(r"^PCI_SLOT_NAME=(\S+)$", text, re.MULTILINE)
    return found[1] if found and PCI_ADDRESS.fullmatch(found[1]) else None
