"""The numbers that a device goes by: every tool counts the same devices in an order of its own.

======  ===============================================================================================
card    minor of the DRM primary node, which the kernel gives out as drivers and partitions come
render  minor of the DRM render node
kfd     node in KFD's topology, processors counted too
gpu     KFD's gpu_id, a hash that changes with the partition mode (amdkfd/kfd_topology.c)
rocr    order of KFD's GPU nodes (libhsakmt/src/topology.c), every GPU of the node visible
hip     the same: HIP takes ROCr's agents as they come (rocclr/device/rocm/rocdevice.cpp)
smi     AMD cards by card number, each followed by its partitions (src/rocm_smi_main.cc)
slurm   order of the files in gres.conf (src/plugins/gres/gpu/gres_gpu.c)
======  ===============================================================================================

All but card, render, kfd and gpu, which are read, are known from source, not from such machines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from nodeagent.domain.device import Device, DeviceState

WORLDS = ("card", "render", "kfd", "gpu", "rocr", "hip", "smi", "slurm")
_NODE = re.compile(r"(?:/dev/dri/)?(card|renderd)([0-9]{1,9})", re.ASCII)
_NUMBER = re.compile(rf"({'|'.join(WORLDS)}):(?:(0x[0-9a-f]{{1,8}})|([0-9]{{1,9}}))", re.ASCII)
_BARE = re.compile(r"[0-9]{1,9}", re.ASCII)


def numbers(device: Device) -> Mapping[str, int]:
    """By world, the device's number there. One that is gone has none: they may be another's by now."""
    if device.state is DeviceState.GONE:
        return {}
    told = {
        "card": None if device.card is None else int(device.card.removeprefix("card")),
        "render": device.render_minor,
        "kfd": device.kfd_node,
        "gpu": device.gpu_id,
        "rocr": device.ordinal,
        "hip": device.ordinal,
        "smi": device.smi_index,
        "slurm": device.slurm_index,
    }
    return {world: number for world, number in told.items() if number is not None}


@lru_cache(4096)
def numbered(name: str) -> tuple[str, int] | None:
    """World and number that *name* says, as ``rocr:0``, ``card1`` and ``/dev/dri/renderD129`` do."""
    wanted = name.strip().casefold()
    if node := _NODE.fullmatch(wanted):
        return ("card" if node[1] == "card" else "render"), int(node[2])
    if number := _NUMBER.fullmatch(wanted):
        return number[1], int(number[2], 16) if number[2] else int(number[3])
    return None


def candidates(name: str, devices: Sequence[Device]) -> Mapping[str, tuple[str, ...]]:
    """What a bare number may mean, by device key: ``{"0000:c1:00.0/0": ("rocr:1", "smi:1")}``.

    Empty also where *name* is no bare number.
    """
    if not _BARE.fullmatch(name.strip()):
        return {}
    wanted = int(name)
    worlds = {one.key: [world for world, own in numbers(one).items() if own == wanted] for one in devices}
    return {key: tuple(f"{world}:{wanted}" for world in meant) for key, meant in worlds.items() if meant}


def with_smi_indexes(devices: Sequence[Device]) -> tuple[Device, ...]:
    """*devices* with the index that rocm-smi and amd-smi give each.

    By card number, where every card has one; else by PCI address, in which order the driver finds them.
    """
    cards = {one.key: numbers(_root(one, devices)).get("card") for one in devices}
    by_card = None not in cards.values()
    order = sorted(
        devices,
        key=lambda one: (cards[one.key] if by_card else 0, _address(one.pci), one.partition, one.key),
    )
    index = {one.key: at for at, one in enumerate(order)}
    return tuple(replace(one, smi_index=index[one.key]) for one in devices)


def _root(device: Device, devices: Sequence[Device]) -> Device:
    """The first partition of the device's card: by its node the SMI libraries find the others."""
    return next((one for one in devices if (one.pci, one.partition) == (device.pci, 0)), device)


def _address(pci: str) -> tuple[int, ...]:
    """A PCI address as it sorts; a device without one comes last."""
    return tuple(int(part, 16) for part in re.split("[:.]", pci)) if pci else (1 << 32,)
