"""Small made-up machines, laid out as sysfs trees."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path

import pytest

from nodeagent.adapters.sysfs import SysTree

TOPOLOGY = "sys/class/kfd/kfd/topology"
PROCESSOR = {"cpu_cores_count": 16, "simd_count": 0}
GIB = 1 << 30
# Properties of a made-up discrete card, in the shape of an MI210.
CARD = {
    "cpu_cores_count": 0,
    "simd_count": 416,
    "array_count": 8,
    "simd_arrays_per_engine": 1,
    "cu_per_simd_array": 14,
    "simd_per_cu": 4,
    "gfx_target_version": 90010,
    "vendor_id": 4098,
    "device_id": 29711,
    "domain": 0,
    "num_cp_queues": 24,
    "num_xcc": 1,
}


class MaskedTree(SysTree):
    """A tree in which some files give EPERM, as the kernel does under a device cgroup."""

    def __init__(self, root: Path, masked: frozenset[str]) -> None:
        super().__init__(root)
        self._masked = masked

    def read_bytes(self, path: str) -> bytes:
        if any(path.startswith(prefix) for prefix in self._masked):
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return super().read_bytes(path)


class MadeUp:
    """Lays out a made-up machine, one file at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.file(f"{TOPOLOGY}/generation_id", "1\n")

    def file(self, path: str, content: str | bytes) -> None:
        full = self.root / path
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_bytes(content.encode() if isinstance(content, str) else content)

    def node(
        self, number: int, properties: Mapping[str, int | str], *, gpu_id: int = 0, vram: int = 0
    ) -> None:
        """A topology node, with one framebuffer bank where *vram* is not 0."""
        node = f"{TOPOLOGY}/nodes/{number}"
        self.file(f"{node}/properties", "".join(f"{key} {value}\n" for key, value in properties.items()))
        self.file(f"{node}/gpu_id", f"{gpu_id}\n")
        if vram:
            self.file(f"{node}/mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {vram}\n")

    def card(self, number: int, **changes: int | str) -> None:
        """A healthy card as node *number*, on PCI bus *number*, with properties changed as told."""
        own = {"location_id": number << 8, "drm_render_minor": 127 + number, "unique_id": 1000 + number}
        self.node(number, {**CARD, **own, **changes}, gpu_id=100 + number, vram=64 * GIB)

    def link(self, number: int, to: int, kind: int, weight: int, *, group: str = "io_links") -> None:
        entry = self.root / TOPOLOGY / "nodes" / str(number) / group
        index = len(list(entry.iterdir())) if entry.exists() else 0
        self.file(
            f"{TOPOLOGY}/nodes/{number}/{group}/{index}/properties",
            f"type {kind}\nnode_from {number}\nnode_to {to}\nweight {weight}\n",
        )

    def drm(self, minor: int, pci: str, **attributes: str | int) -> None:
        """A PCI device with attributes, and the link of its render node."""
        for name, value in attributes.items():
            self.file(f"sys/bus/pci/devices/{pci}/{name}", f"{value}\n")
        self.device_link(minor, f"../../../bus/pci/devices/{pci}")

    def device_link(self, minor: int, target: str) -> None:
        link = self.root / f"sys/class/drm/renderD{minor}/device"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)

    def tree(self, *masked: str) -> SysTree:
        return MaskedTree(self.root, frozenset(masked)) if masked else SysTree(self.root)


@pytest.fixture
def made_up(tmp_path: Path) -> MadeUp:
    """A machine with one processor, node 0, and nothing else yet."""
    machine = MadeUp(tmp_path / "made-up")
    machine.node(0, PROCESSOR)
    return machine
