"""The node's devices and pools, from KFD's topology, DRM and PCI sysfs. Reads only; never opens /dev/kfd."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nodeagent.adapters import capacity, kfd
from nodeagent.adapters import drm as drm_sysfs
from nodeagent.adapters.drm import DrmDevice
from nodeagent.adapters.identity import Identity, identify, located, smi_uuids
from nodeagent.adapters.kfd import KfdNode
from nodeagent.adapters.products import product
from nodeagent.adapters.sysfs import SysTree
from nodeagent.domain.device import VRAM_GRAIN, Device, DeviceState, Inventory, Link, Pool, Skipped, grantable
from nodeagent.domain.device_rules import DeviceRules
from nodeagent.domain.geometry import Geometry
from nodeagent.domain.numbering import with_smi_indexes

# Targets that exist only as the graphics of a processor.
APU_TARGETS = frozenset(
    (
        "gfx700",
        "gfx801",
        "gfx902",
        "gfx909",
        "gfx90c",
        "gfx1013",
        "gfx1033",
        "gfx1035",
        "gfx1036",
        "gfx1037",
        "gfx1103",
        "gfx1150",
        "gfx1151",
        "gfx1152",
        "gfx1153",
    )
)
DATA_CENTRE_APU = "gfx942"  # MI300A: all that its node has, so never left out
APU_REASON = "an APU beside a discrete GPU is left out; set `include_apus = true` in [devices] to lease it"
LINK_KINDS = {kfd.XGMI_LINK: "xgmi", kfd.PCIE_LINK: "pcie"}
FIRST_EPOCH = 1  # of a device; only who remembers earlier scans can count on


@dataclass(frozen=True, slots=True)
class _Scan:
    """Everything read, by topology node, before any device is made of it."""

    nodes: tuple[KfdNode, ...]
    gpus: tuple[KfdNode, ...]
    drm: Mapping[int, DrmDevice]
    identities: Mapping[int, Identity]

    def partitions(self, card: str) -> int:
        return sum(identity.card == card for identity in self.identities.values())

    def pool(self, node: KfdNode) -> str:
        identity = self.identities[node.number]
        seen = self.partitions(identity.card)
        domain = capacity.memory_domain(node, identity.partition, seen, self.drm[node.number])
        return identity.card if domain is None else f"{identity.card}#{domain}"


def discover(
    tree: SysTree,
    *,
    reserve_percent: float = 1.0,
    include_apus: bool = False,
    idle_bytes: Callable[[str], int] | None = None,
    names: Mapping[str, str] = {},
    rules: DeviceRules | None = None,
) -> Inventory:
    """One scan of *tree*. Bad files make their device unhealthy or skipped, with the reason; nothing raises.

    The generation is read before the nodes: one that changes meanwhile shows as a difference next time.

    Args:
        idle_bytes: asked once for each pool found, by key: the VRAM that it uses when nobody works.
        names: keys of before, by `Device.mark`; see `identify`.
        rules: the site's, of single devices.
    """
    counter = kfd.generation(tree)
    scan = _scan(tree, names)
    raw = [_device(scan, node, ordinal, include_apus) for ordinal, node in enumerate(scan.gpus)]
    idle = {key: idle_bytes(key) if idle_bytes else 0 for key in dict.fromkeys(one.pool for one in raw)}
    pools = _pools(scan, raw, idle, reserve_percent)
    sharing = Counter(device.pool for device in raw)
    devices = tuple(
        _with_grantable(device, pools[device.pool], idle[device.pool], reserve_percent, sharing[device.pool])
        for device in raw
    )
    ruled = tuple(map((rules or DeviceRules()).on, with_smi_indexes(devices)))
    return Inventory(counter, ruled, tuple(pools.values()), _skipped(scan.nodes))


def _scan(tree: SysTree, names: Mapping[str, str]) -> _Scan:
    nodes = kfd.nodes(tree)
    gpus = tuple(node for node in nodes if node.is_gpu and not node.masked)
    places = located(gpus)
    drm = {}
    for node in gpus:
        place = places.get(node.number)
        drm[node.number] = drm_sysfs.read(tree, node.render_node, place[0] if place else None)
    return _Scan(nodes, gpus, drm, identify(gpus, drm, names))


def _skipped(nodes: Iterable[KfdNode]) -> tuple[Skipped, ...]:
    skipped = []
    for node in nodes:
        if node.masked:
            skipped.append(Skipped(node.number, node.masked))
        elif not node.is_gpu and node.faults:
            skipped.append(Skipped(node.number, "; ".join(node.faults)))
        elif not node.is_gpu and node.gpu_id:
            skipped.append(Skipped(node.number, f"/{node.path}/properties: simd_count is 0 on a GPU node"))
    return tuple(skipped)


def _device(scan: _Scan, node: KfdNode, ordinal: int, include_apus: bool) -> Device:
    drm, identity = scan.drm[node.number], scan.identities[node.number]
    device_id = node.values.get("device_id") or drm.device_id or 0
    geometry, vram, queues, reason = _capacity(scan, node)
    state = DeviceState.UNHEALTHY if reason else DeviceState.HEALTHY
    if not include_apus and _left_out(scan.gpus, node):
        state, reason = DeviceState.EXCLUDED, APU_REASON
    return Device(
        key=identity.key,
        epoch=FIRST_EPOCH,
        pci=identity.pci,
        partition=identity.partition,
        render_node=node.render_node,
        kfd_node=node.number,
        ordinal=ordinal,
        gpu_id=node.gpu_id,
        unique_id=identity.unique_id,
        product=drm.product or product(device_id, node.gfx),
        gfx=node.gfx,
        geometry=geometry,
        pool=scan.pool(node),
        vram_bytes=vram,
        grantable_bytes=0,
        queue_slots=queues,
        numa_node=drm.numa_node if drm.numa_node is not None else _nearest_numa_node(scan.nodes, node),
        hive=node.values.get("hive_id", 0),
        peers=_peers(scan, node),
        compute_partition=drm.compute_partition,
        memory_partition=drm.memory_partition,
        state=state,
        reason=reason,
        uuid=identity.uuid,
        aliases=_aliases(drm, identity, device_id),
        mark=identity.mark,
        card=drm.card,
    )


def _capacity(scan: _Scan, node: KfdNode) -> tuple[Geometry | None, int, int, str | None]:
    """Geometry, VRAM, queue slots, and all that is wrong with them or with the files read for the node."""
    drm, identity = scan.drm[node.number], scan.identities[node.number]
    reasons = [*node.faults, *drm.faults]
    alone = identity.partition == 0 and scan.partitions(identity.card) == 1
    whole = alone and drm.compute_partition in (None, "SPX")
    geometry, vram, queues = None, 0, 0
    try:
        geometry = capacity.geometry(node)
        queues = capacity.queue_slots(node)
    except capacity.Absurd as absurd:
        reasons.append(f"/{node.path}/properties: {absurd}")
    try:
        vram = capacity.vram_bytes(node, drm, whole_card=whole)
    except capacity.Absurd as absurd:
        reasons.append(str(absurd))
    return geometry, vram, queues, "; ".join(reasons) or None


def _left_out(gpus: Sequence[KfdNode], node: KfdNode) -> bool:
    return _is_apu(node) and node.gfx != DATA_CENTRE_APU and not all(_is_apu(gpu) for gpu in gpus)


def _is_apu(node: KfdNode) -> bool:
    return node.values.get("cpu_cores_count", 0) > 0 or node.gfx in APU_TARGETS


def _nearest_numa_node(nodes: Sequence[KfdNode], node: KfdNode) -> int | None:
    """KFD lists the processors first and in NUMA order; the link with the least weight is the nearest."""
    numa = {processor.number: index for index, processor in enumerate(n for n in nodes if n.is_processor)}
    if node.number in numa:
        return numa[node.number]
    links = [link for link in node.links if link.to in numa]
    return numa[min(links, key=lambda link: link.weight).to] if links else None


def _peers(scan: _Scan, node: KfdNode) -> tuple[Link, ...]:
    best: dict[int, Link] = {}
    for link in node.links:
        identity = scan.identities.get(link.to)
        kind = LINK_KINDS.get(link.kind)
        if identity is None or kind is None or link.to == node.number:
            continue
        if link.to not in best or link.weight < best[link.to].weight:
            best[link.to] = Link(identity.key, kind, link.weight)
    return tuple(best[number] for number in sorted(best))


def _aliases(drm: DrmDevice, identity: Identity, device_id: int) -> tuple[str, ...]:
    names = [drm.serial]
    if identity.unique_id:
        names += [str(identity.unique_id), f"0x{identity.unique_id:016x}"]
    if identity.unique_id and 0 < device_id <= 0xFFFF:
        names += smi_uuids(identity.unique_id, device_id, identity.partition)
    return tuple(name for name in names if name)


def _pools(
    scan: _Scan, devices: Sequence[Device], idle: Mapping[str, int], reserve_percent: float
) -> Mapping[str, Pool]:
    """One pool a card, or one an NPS domain; a card's own total counts, else the sum of its partitions."""
    sums: Counter[str] = Counter()
    totals: dict[str, int] = {}
    cards: dict[str, str] = {}
    for device in devices:
        sums[device.pool] += device.vram_bytes
        card = cards[device.pool] = scan.identities[device.kfd_node].card
        total = scan.drm[device.kfd_node].vram_bytes
        if device.pool == card and total and total <= capacity.VRAM_LIMIT:
            totals[device.pool] = total
    return {
        key: _pool(key, cards[key], totals.get(key, sums[key]), idle[key], reserve_percent) for key in sums
    }


def _pool(key: str, card: str, vram: int, idle: int, reserve_percent: float) -> Pool:
    return Pool(key, f"drm/{card}/vram", vram, grantable(vram, idle, reserve_percent))


def _with_grantable(device: Device, pool: Pool, idle: int, reserve_percent: float, sharing: int) -> Device:
    """A partition carries its share of what an idle card uses.

    Where the kernel lets each of those *sharing* a pool have all of it (allocation mode ALL), each of them
    lists all of it: an even share is what there is for each.
    """
    share = idle * device.vram_bytes // pool.vram_bytes if pool.vram_bytes else 0
    own = min(grantable(device.vram_bytes, share, reserve_percent), pool.grantable_bytes)
    even = pool.grantable_bytes // sharing // VRAM_GRAIN * VRAM_GRAIN
    return replace(device, grantable_bytes=own, even_bytes=even if own > even else 0)
