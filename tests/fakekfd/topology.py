"""The sysfs that ROCm and the agent read, for GPUs of one model.

The machine files of tests/machines lack what ROCr insists on (caches, memory banks, ids), so the tree is made
here. Keys: drivers/gpu/drm/amd/amdkfd/kfd_topology.c.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.fakekfd.driver import Gpu

GIB = 1 << 30
KFD = "devices/virtual/kfd/kfd"
FIRST_MINOR = 128
HEAP_SYSTEM, HEAP_VRAM = 0, 1
PCIE = 2
SVM_API, WATCH_POINTS = 0x08000000, 0x4280


@dataclass(frozen=True)
class Model:
    """What tells one kind of GPU from another. *arrays*: shader arrays of all engines; *gfx* as in sysfs."""

    name: str
    device: int
    gfx: int
    cus: int
    arrays: int
    arrays_per_engine: int
    cus_per_array: int
    simds_per_cu: int
    wave: int
    vram: int
    pairs: bool = False


MODELS = {
    "mi210": Model("aldebaran", 0x740F, 90010, 104, 8, 1, 14, 4, 64, 64 * GIB),
    "rx6900xt": Model("sienna_cichlid", 0x73BF, 100300, 80, 8, 2, 10, 2, 32, 16 * GIB, pairs=True),
}


def gpus(model: Model, count: int, vram: int | None = None) -> list[Gpu]:
    """*count* GPUs; *vram* bytes each if not the model's own."""
    size = vram or model.vram
    return [Gpu(0x1000 + i, FIRST_MINOR + i, size, size, model.pairs) for i in range(count)]


def write(root: Path, model: Model, devices: list[Gpu]) -> None:
    """Write the files and links that stand below /sys into *root*."""
    _topology(root / KFD / "topology", model, devices)
    (root / KFD / "proc").mkdir()
    _link(root / "class/kfd/kfd", f"../../{KFD}")
    _text(root / "module/amdgpu/initstate", "live\n")
    _text(root / "module/amdgpu/version", "6.12.12\n")
    _text(root / "module/amdgpu/refcnt", "0\n")
    for index, gpu in enumerate(devices):
        _card(root, model, gpu, index)


def used_file(index: int) -> str:
    """Where a GPU's count of used VRAM stands, below /sys."""
    return f"devices/pci0000:00/{_address(index)}/mem_info_vram_used"


def _address(index: int) -> str:
    return f"0000:{0x63 + index:02x}:00.0"


def _topology(root: Path, model: Model, devices: list[Gpu]) -> None:
    _text(root / "generation_id", "2\n")
    _properties(root / "system_properties", {"platform_oem": 0, "platform_id": 1, "platform_rev": 2})
    host = root / "nodes/0"
    _text(host / "gpu_id", "0\n")
    _text(host / "name", "\n")
    links = {"mem_banks_count": 1, "caches_count": 0, "io_links_count": len(devices), "p2p_links_count": 0}
    _properties(
        host / "properties", {"cpu_cores_count": 2, "simd_count": 0, **links, "gfx_target_version": 0}
    )
    _bank(host, HEAP_SYSTEM, 16 * GIB, 64)
    for index, gpu in enumerate(devices):
        _io_link(host, index, 0, index + 1)
        _gpu_node(root / f"nodes/{index + 1}", model, gpu, index)


def _gpu_node(node: Path, model: Model, gpu: Gpu, index: int) -> None:
    _text(node / "gpu_id", f"{gpu.gpu_id}\n")
    _text(node / "name", f"{model.name}\n")
    counts = {"cpu_cores_count": 0, "simd_count": model.cus * model.simds_per_cu, "mem_banks_count": 1}
    links = {"caches_count": 2, "io_links_count": 1, "p2p_links_count": 0, "cpu_core_id_base": 0}
    waves = {"simd_id_base": 1 << 31, "max_waves_per_simd": 8, "lds_size_in_kb": 64, "gds_size_in_kb": 0}
    arrays = {
        "num_gws": 64,
        "wave_front_size": model.wave,
        "array_count": model.arrays,
        "simd_arrays_per_engine": model.arrays_per_engine,
        "cu_per_simd_array": model.cus_per_array,
        "simd_per_cu": model.simds_per_cu,
        "max_slots_scratch_cu": 32,
        "gfx_target_version": model.gfx,
    }
    place = {
        "vendor_id": 0x1002,
        "device_id": model.device,
        "location_id": 0x6300 + (index << 8),
        "domain": 0,
        "drm_render_minor": gpu.minor,
        "hive_id": 0,
    }
    engines = {
        "num_sdma_engines": 2,
        "num_sdma_xgmi_engines": 0,
        "num_sdma_queues_per_engine": 8,
        "num_cp_queues": 24,
        "max_engine_clk_fcompute": 1700,
        "local_mem_size": 0,
        "fw_version": 92,
        "capability": SVM_API | WATCH_POINTS,
        "debug_prop": 470,
        "sdma_fw_version": 9,
        "unique_id": 0x1901EAD3A2ECD4A6 + index,
        "num_xcc": 1,
        "max_engine_clk_ccompute": 3000,
    }
    _properties(node / "properties", {**counts, **links, **waves, **arrays, **place, **engines})
    _bank(node, HEAP_VRAM, gpu.vram, 4096)
    for number, (level, size, line) in enumerate(((1, 16, 64), (2, 8192, 128))):
        cache = {"processor_id_low": 1 << 31, "level": level, "size": size, "cache_line_size": line}
        more = {"cache_lines_per_tag": 1, "association": 16, "latency": 0, "type": 9}
        _properties(
            node / f"caches/{number}/properties", {**cache, **more, "sibling_map": ",".join("1" * 16)}
        )
    _io_link(node, 0, index + 1, 0)


def _bank(node: Path, heap: int, size: int, width: int) -> None:
    values = {"heap_type": heap, "size_in_bytes": size, "flags": 0, "width": width, "mem_clk_max": 1600}
    _properties(node / "mem_banks/0/properties", values)


def _io_link(node: Path, number: int, start: int, end: int) -> None:
    version = {"type": PCIE, "version_major": 0, "version_minor": 0, "node_from": start, "node_to": end}
    speed = {"weight": 20, "min_latency": 0, "max_latency": 0, "min_bandwidth": 312, "max_bandwidth": 16000}
    _properties(
        node / f"io_links/{number}/properties",
        {**version, **speed, "recommended_transfer_size": 0, "flags": 1},
    )


def _card(root: Path, model: Model, gpu: Gpu, index: int) -> None:
    address = _address(index)
    card = root / f"devices/pci0000:00/{address}"
    for name, value in {
        "vendor": "0x1002",
        "device": f"{model.device:#x}",
        "revision": "0x02",
        "uevent": f"DRIVER=amdgpu\nPCI_ID=1002:{model.device:X}\nPCI_SLOT_NAME={address}",
        "mem_info_vram_total": gpu.vram,
        "mem_info_vram_used": 0,
        "unique_id": f"{0x1901EAD3A2ECD4A6 + index:016x}",
        "numa_node": 0,
    }.items():
        _text(card / name, f"{value}\n")
    for name, minor in ((f"card{index}", index), (f"renderD{gpu.minor}", gpu.minor)):
        _text(card / f"drm/{name}/dev", f"226:{minor}\n")
        _text(card / f"drm/{name}/uevent", f"MAJOR=226\nMINOR={minor}\nDEVNAME=dri/{name}\n")
        _link(card / f"drm/{name}/device", "../..")
        _link(root / f"class/drm/{name}", f"../../devices/pci0000:00/{address}/drm/{name}")
    _link(root / f"bus/pci/devices/{address}", f"../../../devices/pci0000:00/{address}")


def _properties(path: Path, values: Mapping[str, object]) -> None:
    _text(path, "".join(f"{key} {value}\n" for key, value in values.items()))


def _text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
