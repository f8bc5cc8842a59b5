"""KFD's topology: what /sys/class/kfd/kfd/topology says about each node. Never opens /dev/kfd.

Keys and units as in the kernel's drivers/gpu/drm/amd/amdkfd/kfd_topology.c.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nodeagent.adapters.sysfs import Problem, Properties, SysTree, Unread

TOPOLOGY = "sys/class/kfd/kfd/topology"
FRAMEBUFFER_HEAPS = (1, 2)  # public and private VRAM; 0 is system memory
PCIE_LINK = 2
XGMI_LINK = 11
# What discovery decides by. A value that is no number here makes the device unhealthy; other keys may hold
# what a newer kernel likes.
USED_KEYS = frozenset(
    (
        "cpu_cores_count",
        "simd_count",
        "array_count",
        "simd_arrays_per_engine",
        "cu_per_simd_array",
        "simd_per_cu",
        "gfx_target_version",
        "device_id",
        "location_id",
        "domain",
        "drm_render_minor",
        "hive_id",
        "num_cp_queues",
        "local_mem_size",
        "unique_id",
        "num_xcc",
    )
)


@dataclass(frozen=True, slots=True)
class KfdLink:
    """One entry of io_links or p2p_links; a lower *weight* is closer."""

    to: int  # topology node
    kind: int
    weight: int


@dataclass(frozen=True, slots=True)
class KfdNode:
    """One topology node, with everything that was wrong with its files."""

    number: int
    values: Mapping[str, int] = field(default_factory=dict)
    gpu_id: int | None = None
    bank_bytes: int | None = None  # VRAM in the memory banks; None where no bank says
    links: tuple[KfdLink, ...] = ()
    faults: tuple[str, ...] = ()
    masked: str | None = None  # the reason, where the kernel denies this process the node

    @property
    def path(self) -> str:
        return node_path(self.number)

    @property
    def is_gpu(self) -> bool:
        """Has SIMDs; of a node whose files do not say, all but a plain processor may be a GPU."""
        simds = self.values.get("simd_count")
        if simds is not None:
            return simds > 0
        return bool(self.gpu_id) or not self.is_processor

    @property
    def is_processor(self) -> bool:
        """Has CPU cores: a NUMA node (an APU is one, too)."""
        cores = self.values.get("cpu_cores_count")
        if cores is not None:
            return cores > 0
        return self.gpu_id == 0 or (self.gpu_id is None and self.values.get("drm_render_minor") == 0)

    @property
    def render_node(self) -> str | None:
        minor = self.values.get("drm_render_minor", 0)
        return f"renderD{minor}" if minor else None

    @property
    def gfx(self) -> str | None:
        """The target's name: 90402 is gfx942, 90010 gfx90a; None where the kernel does not say."""
        version = self.values.get("gfx_target_version", 0)
        major, minor, stepping = version // 10000, version // 100 % 100, version % 100
        return f"gfx{major}{minor:x}{stepping:x}" if version else None


def node_path(number: int) -> str:
    return f"{TOPOLOGY}/nodes/{number}"


def generation(tree: SysTree) -> int | None:
    """KFD's generation_id: another number means that nodes came, went or changed their partitions."""
    number = tree.number(f"{TOPOLOGY}/generation_id")
    return None if isinstance(number, Unread) else number


def nodes(tree: SysTree) -> tuple[KfdNode, ...]:
    """Every topology node in KFD's order; none where there is no KFD."""
    return tuple(_node(tree, number) for number in tree.numbered(f"{TOPOLOGY}/nodes"))


def _node(tree: SysTree, number: int) -> KfdNode:
    path = node_path(number)
    properties = tree.properties(f"{path}/properties")
    gpu_id, faults = _gpu_id(tree, path)
    if isinstance(properties, Unread):
        # libhsakmt reads a denied node as "not for me", and so do we.
        masked = properties.reason if properties.problem is Problem.DENIED else None
        return KfdNode(number, gpu_id=gpu_id, faults=(properties.reason, *faults), masked=masked)
    faults += _bad_values(properties)
    if properties.values.get("simd_count") == 0:
        return KfdNode(number, properties.values, gpu_id)
    bank_bytes, bank_faults = _banks(tree, path)
    links, link_faults = _links(tree, path)
    all_faults = (*faults, *bank_faults, *link_faults)
    return KfdNode(number, properties.values, gpu_id, bank_bytes, links, all_faults)


def _gpu_id(tree: SysTree, path: str) -> tuple[int | None, list[str]]:
    """Copied trees often lack the file, so only a bad one is a fault."""
    gpu_id = tree.number(f"{path}/gpu_id")
    if isinstance(gpu_id, Unread):
        return None, [] if gpu_id.problem is Problem.MISSING else [gpu_id.reason]
    return gpu_id, []


def _bad_values(properties: Properties) -> list[str]:
    bad = sorted(properties.garbled & USED_KEYS)
    return [f"/{properties.path}: {', '.join(bad)} is not one decimal number"] if bad else []


def _banks(tree: SysTree, path: str) -> tuple[int | None, list[str]]:
    """The bytes of the framebuffer banks, and what was wrong with the banks' files."""
    total: int | None = None
    faults = []
    for bank in tree.numbered(f"{path}/mem_banks"):
        found = _fields(tree, f"{path}/mem_banks/{bank}/properties", "heap_type", "size_in_bytes")
        if isinstance(found, str):
            faults.append(found)
        elif found["heap_type"] in FRAMEBUFFER_HEAPS:
            total = (total or 0) + found["size_in_bytes"]
    return total, faults


def _links(tree: SysTree, path: str) -> tuple[tuple[KfdLink, ...], list[str]]:
    links = []
    faults = []
    for kind in ("io_links", "p2p_links"):
        for number in tree.numbered(f"{path}/{kind}"):
            file = f"{path}/{kind}/{number}/properties"
            found = _fields(tree, file, "node_to", "type", "weight", denied_is_empty=True)
            if isinstance(found, str):
                faults.append(found)
            elif found:
                links.append(KfdLink(found["node_to"], found["type"], found["weight"]))
    return tuple(links), faults


def _fields(tree: SysTree, path: str, *keys: str, denied_is_empty: bool = False) -> Mapping[str, int] | str:
    """The *keys* of a properties file, or what is wrong with it. A link to a masked GPU is denied, too."""
    properties = tree.properties(path)
    if isinstance(properties, Unread):
        return {} if denied_is_empty and properties.problem is Problem.DENIED else properties.reason
    lacking = [key for key in keys if key not in properties.values]
    if lacking:
        return f"/{path}: {', '.join(lacking)} is missing or not one decimal number"
    return properties.values
