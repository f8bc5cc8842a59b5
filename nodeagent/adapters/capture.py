"""Makes a machine file's content from a live or copied sys tree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from nodeagent.adapters import kfd
from nodeagent.adapters.drm import DRM, PCI, pci_address
from nodeagent.adapters.identity import location
from nodeagent.adapters.machine_file import Files, Machine
from nodeagent.adapters.sysfs import Problem, SysTree, Unread
from nodeagent.domain.errors import OutsideFault

AMD = 0x1002
PLATFORM = "sys/devices/platform"
# Where a tree's topology may lie: whole, below a copied `topology`, or the root is the topology itself.
TOPOLOGIES = (f"{kfd.TOPOLOGY}/", "topology/", "")
# The caches and performance counters of a node are left out: thousands of files that nothing here reads.
NODE_FILES = ("gpu_id", "name", "properties")
ENTRY_FILES = ("properties", "used_memory")
ENTRY_DIRECTORIES = ("mem_banks", "io_links", "p2p_links")
PCI_FILES = (
    "class",
    "vendor",
    "device",
    "subsystem_vendor",
    "subsystem_device",
    "revision",
    "numa_node",
    "unique_id",
    "product_name",
    "product_number",
    "vbios_version",
    "mem_info_vram_total",
    "mem_info_vram_used",
    "mem_info_vis_vram_total",
    "mem_info_gtt_total",
    "available_compute_partition",
    "available_memory_partition",
    "compute_partition_mem_alloc_mode",
    "current_compute_partition",
    "current_memory_partition",
)


def capture(root: Path) -> Machine:
    """The machine that the tree at *root* shows: ``/``, a copy of it, or a bare KFD topology.

    Takes KFD's topology and the AMD GPUs' PCI attributes, but no serial number: the file is meant to be sent
    to others. Raises OutsideFault where there is no topology.
    """
    tree = SysTree(root)
    collected = _Collected(tree)
    base = next((base for base in TOPOLOGIES if tree.exists(f"{base}nodes")), None)
    if base is None:
        why = f"has neither {kfd.TOPOLOGY}/nodes nor topology/nodes nor nodes"
        raise OutsideFault(root, f"{why}: is amdgpu loaded there? Or name a copied tree with --root")
    for path in _topology_files(tree, base):
        collected.take(path, f"{kfd.TOPOLOGY}/{path.removeprefix(base)}")
    _take_render_nodes(tree, collected)
    _take_located(tree, collected, base)
    captured = Files(collected.files, collected.links)
    return Machine(
        name="captured",
        description="captured from a sys tree",
        source="nodeagent simulate capture",
        made_up=False,
        captured=captured,
        unreadable=tuple(collected.unreadable),
    )


class _Collected:
    def __init__(self, tree: SysTree) -> None:
        self.files: dict[str, bytes] = {}
        self.links: dict[str, str] = {}
        self.unreadable: list[str] = []
        self._tree = tree

    def take(self, path: str, canonical: str) -> None:
        """Keep the file *path* as *canonical*; one that is not there, or fails to read, is left out."""
        content = self._tree.content(path)
        if not isinstance(content, Unread):
            self.files[canonical] = content
        elif content.problem is Problem.DENIED and canonical not in self.unreadable:
            self.unreadable.append(canonical)


def _topology_files(tree: SysTree, base: str) -> Iterator[str]:
    yield from (f"{base}generation_id", f"{base}system_properties")
    for number in tree.numbered(f"{base}nodes"):
        node = f"{base}nodes/{number}"
        yield from (f"{node}/{file}" for file in NODE_FILES)
        for directory in ENTRY_DIRECTORIES:
            for entry in tree.numbered(f"{node}/{directory}"):
                yield from (f"{node}/{directory}/{entry}/{file}" for file in ENTRY_FILES)


def _take_render_nodes(tree: SysTree, collected: _Collected) -> None:
    for render_node in _matching(tree, DRM, r"renderD[0-9]{1,9}"):
        path = f"{DRM}/{render_node}/device"
        pci = pci_address(tree, render_node)
        if pci is not None and tree.hexadecimal(f"{path}/vendor") == AMD:
            _take_pci(tree, collected, path, pci)
            collected.links[path] = f"../../../{PCI.removeprefix('sys/')}/{pci}"
        device = (tree.link(path) or "").rpartition("/")[2]
        if device.startswith("amdgpu_xcp"):
            collected.links[path] = f"../../../{PLATFORM.removeprefix('sys/')}/{device}"
            _take_nodes(tree, collected, path, f"{PLATFORM}/{device}")


def _take_located(tree: SysTree, collected: _Collected, base: str) -> None:
    """Also PCI devices that only a node's location_id leads to: partial copies often lack /sys/class/drm."""
    for number in tree.numbered(f"{base}nodes"):
        properties = tree.properties(f"{base}nodes/{number}/properties")
        if isinstance(properties, Unread):
            continue
        place = location(kfd.KfdNode(number, properties.values))
        for pci in {f"{place[0]}.0", f"{place[0]}.{place[1]}"} if place else ():
            if tree.hexadecimal(f"{PCI}/{pci}/vendor") == AMD:
                _take_pci(tree, collected, f"{PCI}/{pci}", pci)


def _take_pci(tree: SysTree, collected: _Collected, directory: str, pci: str) -> None:
    for file in PCI_FILES:
        collected.take(f"{directory}/{file}", f"{PCI}/{pci}/{file}")
    _take_nodes(tree, collected, directory, f"{PCI}/{pci}")


def _take_nodes(tree: SysTree, collected: _Collected, directory: str, canonical: str) -> None:
    for node in _matching(tree, f"{directory}/drm", r"(card|renderD)[0-9]{1,9}"):
        collected.take(f"{directory}/drm/{node}/dev", f"{canonical}/drm/{node}/dev")


def _matching(tree: SysTree, directory: str, pattern: str) -> Iterator[str]:
    names = tree.names(directory)
    if not isinstance(names, Unread):
        yield from (name for name in names if re.fullmatch(pattern, name))
