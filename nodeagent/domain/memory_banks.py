"""KFD's memory banks, as a container is shown them: no larger than the lease's slice.

ROCm takes a device's memory from ``mem_banks/<n>/properties`` of its topology node: the total that
hipMemGetInfo tells, and the most that an allocation may have (ROCr's amd_memory_region.cpp). So a shrunken
copy that is mounted over the kernel's makes ROCm itself keep to the slice, where no library can be loaded,
too. It bounds each process by itself, not all of a lease together: memory stays advisory by it.
"""

from __future__ import annotations

from collections.abc import Mapping

TOPOLOGY = "/sys/devices/virtual/kfd/kfd/topology"  # /sys/class/kfd/kfd is a link to there
FRAME_BUFFER = (1, 2)  # heap types of VRAM, public and private; 0 is system memory

Bank = Mapping[str, int]


def banks_path(node: int) -> str:
    """The directory of the banks of topology node *node*: on the node, and in a container."""
    return f"{TOPOLOGY}/nodes/{node}/mem_banks"


def shrunken(banks: Mapping[int, Bank], shown_bytes: int) -> dict[int, Bank]:
    """*banks* of a node, by number, with *shown_bytes* of VRAM at most in all; the first ones get them."""
    kept, left = dict(banks), shown_bytes
    for number in sorted(banks):
        bank = banks[number]
        if bank.get("heap_type") in FRAME_BUFFER:
            size = min(bank.get("size_in_bytes", 0), left)
            kept[number] = {**bank, "size_in_bytes": size}
            left -= size
    return kept
