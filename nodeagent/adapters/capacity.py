"""How much a GPU node has: its CU geometry, VRAM and queue slots. Absurd values are named, never believed."""

from __future__ import annotations

from nodeagent.adapters.drm import DrmDevice
from nodeagent.adapters.kfd import KfdNode
from nodeagent.adapters.products import MI300A
from nodeagent.domain.geometry import Geometry, wgp_pair

CU_LIMIT = 1024  # per device; MI300X, the largest, has 304
XCC_LIMIT = 64
VRAM_LIMIT = 1 << 50  # bytes; dmem cannot hold limits from 2 PiB on
QUEUE_LIMIT = 4096
DATA_CENTRE_QUEUES = 24  # num_cp_queues in every dump of a gfx9 card
CLIENT_QUEUES = 8  # in those of RDNA
PARTITIONS_OF = {"SPX": 1, "DPX": 2, "TPX": 3, "QPX": 4}


class Absurd(Exception):
    """A value that no hardware has; the text names the key."""


def geometry(node: KfdNode) -> Geometry:
    """The CU geometry that the node's properties describe; raises `Absurd`.

    ``array_count`` counts the arrays of all XCCs. ``num_xcc`` is missing before Linux 6.6: one.
    """
    xccs = _positive(node, "num_xcc", XCC_LIMIT, default=1)
    per_cu = _positive(node, "simd_per_cu", 16)
    arrays = _positive(node, "simd_arrays_per_engine", 64)
    array_cus = _positive(node, "cu_per_simd_array", CU_LIMIT)
    cus = _divided(node, "simd_count", per_cu, "simd_per_cu")
    array_count = _positive(node, "array_count", CU_LIMIT)
    engines = _divided(node, "array_count", arrays * xccs, "simd_arrays_per_engine x num_xcc")
    if not 0 < cus <= min(CU_LIMIT, array_count * array_cus):
        raise Absurd(f"{cus} CUs in {array_count} arrays of at most {array_cus} (at most {CU_LIMIT} in all)")
    if cus % xccs:
        raise Absurd(f"{cus} CUs do not divide among {xccs} XCCs (num_xcc)")
    return Geometry(cus, xccs, engines, arrays, array_cus, wgp_pair(node.gfx, per_cu))


def queue_slots(node: KfdNode) -> int:
    """Compute queues that run at once.

    Old kernels do not say; then as many as the dumps of the same generation have, an assumption.
    """
    told = node.values.get("num_cp_queues", 0)
    if told > QUEUE_LIMIT:
        raise Absurd(f"num_cp_queues is {told}")
    # A kernel too old to name the target still tells pre-RDNA by its four SIMDs a CU.
    pre_rdna = node.gfx.startswith("gfx9") if node.gfx else node.values.get("simd_per_cu") == 4
    return told or (DATA_CENTRE_QUEUES if pre_rdna else CLIENT_QUEUES)


def vram_bytes(node: KfdNode, drm: DrmDevice, *, whole_card: bool) -> int:
    """The device's own VRAM. A partition without memory banks is not given its card's total."""
    total = node.bank_bytes
    if not total and whole_card:
        total = drm.vram_bytes or node.values.get("local_mem_size")
    if not total:
        where = f"no VRAM size in /{node.path}/mem_banks/*/properties (heap_type 1 or 2)"
        raise Absurd(f"{where}, mem_info_vram_total of its PCI device or local_mem_size of its properties")
    if total > VRAM_LIMIT:
        raise Absurd(f"{total} bytes of VRAM")
    return total


def memory_domain(node: KfdNode, partition: int, seen: int, drm: DrmDevice) -> int | None:
    """The partition's NPS domain; None where the card's memory is one, or its mode unknown.

    *seen* is how many partitions of the card show here: in CPX some may be masked.
    """
    domains = int((drm.memory_partition or "NPS1").removeprefix("NPS"))
    if domains == 1:
        return None
    full_cpx = 6 if node.values.get("device_id") == MI300A else 8
    partitions = max(seen, PARTITIONS_OF.get(drm.compute_partition or "", full_cpx), partition + 1)
    return partition * domains // partitions


def _positive(node: KfdNode, key: str, limit: int, default: int | None = None) -> int:
    value = node.values.get(key, default)
    if value is None:
        raise Absurd(f"{key} is missing")
    if not 0 < value <= limit:
        raise Absurd(f"{key} is {value}")
    return value


def _divided(node: KfdNode, key: str, divisor: int, what: str) -> int:
    value = node.values.get(key)
    if value is None:
        raise Absurd(f"{key} is missing")
    if value % divisor:
        raise Absurd(f"{key} {value} does not divide by {what} {divisor}")
    return value // divisor
