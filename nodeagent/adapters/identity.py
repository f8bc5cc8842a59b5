"""Which name each GPU node of a machine goes by: its key, and the UUID where that is certain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from nodeagent.adapters.drm import DrmDevice
from nodeagent.adapters.kfd import KfdNode

PARTITION_BITS = 0x7  # of location_id: KFD puts the partition there, where PCI has the function
PARTITIONED_TARGETS = ("gfx942", "gfx950")
T = TypeVar("T", int, str)


@dataclass(frozen=True, slots=True)
class Identity:
    """A device's key ``<card>/<partition>``; *card* is the PCI address unless that is not unique."""

    card: str
    partition: int
    pci: str  # empty where the node says none
    unique_id: int = 0
    uuid: str | None = None
    mark: str = ""  # what it is recognised by for as long as the node runs; empty where that is not certain

    @property
    def key(self) -> str:
        return f"{self.card}/{self.partition}"


def location(node: KfdNode) -> tuple[str, int] | None:
    """The node's PCI device with function 0, and its function bits; None where it says none.

    A location_id of 0 in a PCI domain other than 0 is real (V710 in a virtual machine).
    """
    identifier, domain = node.values.get("location_id", 0), node.values.get("domain", 0)
    if (not identifier and not domain) or identifier > 0xFFFF or domain > 0xFFFFFFFF:
        return None
    bus, device = identifier >> 8, identifier >> 3 & 0x1F
    return f"{domain:04x}:{bus:02x}:{device:02x}", identifier & PARTITION_BITS


def located(nodes: Sequence[KfdNode]) -> Mapping[int, tuple[str, int]]:
    """By topology node: PCI address and partition as location_id alone tells them.

    The low three bits are a partition where several nodes share the rest, or where the target is one that
    can be partitioned; else they are the PCI function.
    """
    locations = {node.number: found for node in nodes if (found := location(node))}
    members: dict[str, set[int]] = {}
    for slot, low_bits in locations.values():
        members.setdefault(slot, set()).add(low_bits)
    result = {}
    for node in nodes:
        if node.number in locations:
            slot, low_bits = locations[node.number]
            partitioned = len(members[slot]) > 1 or node.gfx in PARTITIONED_TARGETS
            result[node.number] = (f"{slot}.0", low_bits) if partitioned else (f"{slot}.{low_bits}", 0)
    return result


def identify(
    nodes: Sequence[KfdNode], drm: Mapping[int, DrmDevice], names: Mapping[str, str] = {}
) -> Mapping[int, Identity]:
    """By topology node: keys that are unique on this machine, whatever its files say.

    *names* are keys of before, by mark: who had one keeps it, whatever has come or gone beside it.
    """
    by_location, marks = located(nodes), _marks(nodes)
    named = {node.number: _named(node, drm[node.number].pci, by_location.get(node.number)) for node in nodes}
    kept = _kept(marks, names)
    named |= {number: replace(named[number], card=card, partition=at) for number, (card, at) in kept.items()}
    for fallback in (_by_render_node, _by_topology_node):
        counts = Counter(identity.key for identity in named.values())
        for node in nodes:
            if counts[named[node.number].key] > 1 and node.number not in kept:
                named[node.number] = fallback(node, named[node.number])
    marked = {number: replace(one, mark=marks.get(number, "")) for number, one in named.items()}
    return _with_unique_ids(nodes, drm, marked)


def _marks(nodes: Sequence[KfdNode]) -> Mapping[int, str]:
    """What of each node no other's coming or going changes; none of two that are alike in all of it."""
    marks = {node.number: _mark(node) for node in nodes if node.render_node is not None}
    alike = _repeated(marks.values())
    return {number: mark for number, mark in marks.items() if mark not in alike}


def _mark(node: KfdNode) -> str:
    numbers = (node.values.get(name, 0) for name in ("domain", "location_id", "unique_id"))
    return " ".join(map(str, (*numbers, node.render_node, node.gpu_id)))


def _kept(marks: Mapping[int, str], names: Mapping[str, str]) -> Mapping[int, tuple[str, int]]:
    """By node: card and partition that it keeps. A name that two have a right to is nobody's."""
    keys = {number: names[mark] for number, mark in marks.items() if mark in names}
    disputed = _repeated(keys.values())
    split = {number: key.rpartition("/") for number, key in keys.items() if key not in disputed}
    return {number: (card, int(partition)) for number, (card, _, partition) in split.items()}


def _named(node: KfdNode, pci: str | None, place: tuple[str, int] | None) -> Identity:
    if pci:
        return Identity(pci, _partition_at(node, pci), pci)
    if place:
        return Identity(place[0], place[1], place[0])
    return _by_render_node(node, Identity("", 0, ""))


def _partition_at(node: KfdNode, pci: str) -> int:
    """Partition 0 hangs under the PCI device itself, so its location_id is the device's own."""
    place = location(node)
    if place is None or place[0] != pci.rpartition(".")[0] or f"{place[0]}.{place[1]}" == pci:
        return 0
    return place[1]


def _by_render_node(node: KfdNode, identity: Identity) -> Identity:
    if node.render_node is None:
        return _by_topology_node(node, identity)
    return Identity(node.render_node, 0, identity.pci)


def _by_topology_node(node: KfdNode, identity: Identity) -> Identity:
    return Identity(f"node{node.number}", 0, identity.pci)


def _with_unique_ids(
    nodes: Sequence[KfdNode], drm: Mapping[int, DrmDevice], named: Mapping[int, Identity]
) -> Mapping[int, Identity]:
    """Adds unique ids, and the UUID where an id is one device's alone.

    Without an id of KFD's own ROCr knows the device by no UUID, whatever DRM says.
    """
    own = {node.number: node.values.get("unique_id", 0) for node in nodes}
    shared = _repeated(own.values())
    ids = {number: value for number, value in own.items() if value and value not in shared}
    ids = {number: ids.get(number) or drm[number].unique_id or own[number] for number in own}
    repeated = _repeated(ids.values())
    result = {}
    for number, identity in named.items():
        certain = own[number] and ids[number] not in repeated
        uuid = f"GPU-{ids[number]:016x}" if certain else None
        result[number] = replace(identity, unique_id=ids[number], uuid=uuid)
    return result


def smi_uuids(unique_id: int, device_id: int, partition: int) -> tuple[str, ...]:
    """The UUIDs that AMD SMI prints: older releases put ff where newer ones put the partition.

    Layout as in amdsmi's amd_smi_uuid: the id's top byte, that byte, device id, version 1, the other bytes.
    """
    return tuple(
        f"{unique_id >> 56:02x}{byte:02x}{device_id:04x}-0000-1000"
        f"-80{unique_id >> 48 & 0xFF:02x}-{unique_id & 0xFFFF_FFFF_FFFF:012x}"
        for byte in (0xFF, partition)
    )


def _repeated(values: Iterable[T]) -> set[T]:
    return {value for value, count in Counter(values).items() if count > 1}
