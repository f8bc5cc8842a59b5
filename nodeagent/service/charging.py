"""What the hook and the supervisor know of devices: they charge requests that name one by number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodeagent.adapters.hook_format import HookDevice, shown_bytes
from nodeagent.domain.cuset import CuSet
from nodeagent.domain.device import Device, Inventory
from nodeagent.domain.guarantee import Queues
from nodeagent.domain.lease import PlacedSlice
from nodeagent.domain.request import Priority
from nodeagent.service.effects import Arguments
from nodeagent.service.means import Setting


def chargeable(setting: Setting) -> bool:
    """Whether each device can be told from a request: by KFD's id, and by its render node."""
    return all(_numbered(setting.inventory.device(one.device)) for one in setting.placed)


# As KFD counts them: what ROCm asks for HSA_AMD_QUEUE_PRIORITY_LOW, _NORMAL and _HIGH (ROCr: hsa_ext_amd.cpp;
# libhsakmt: queues.c). Older releases ask 15 for the last; newer ones keep that to themselves.
QUEUE_LEVELS = {Priority.LOW: 0, Priority.NORMAL: 7, Priority.HIGH: 11}


def charged(setting: Setting) -> dict[str, Any]:
    """The devices of a `chargeable` setting as an effect's arguments, in the order of the slices."""
    return {
        "devices": [_arguments(one, setting.inventory) for one in setting.placed],
        "queue_levels": [_queue_level(one, setting.queue_priority) for one in setting.placed],
    }


def devices_of(arguments: Arguments) -> list[HookDevice]:
    """What `charged` put into *arguments*."""
    devices = arguments["devices"]
    levels = arguments.get("queue_levels") or [None] * len(devices)  # of a lease from before there was any
    return [
        HookDevice(**{**one, "cus": CuSet.parse(one["cus"]), "queue_level": level})
        for one, level in zip(devices, levels, strict=True)
    ]


def queues_held(arguments: Arguments, by: Queues) -> dict[str, Queues]:
    """What an effect's evidence says of queues that it holds: nothing where they are as programs ask."""
    levels = arguments.get("queue_levels") or [None]
    return {} if None in levels else {"queues": by}


def _queue_level(placed: PlacedSlice, asked: Priority) -> int | None:
    """Who has a device to itself orders its own queues, unless it asks for a level."""
    return None if placed.exclusive and asked is Priority.NORMAL else QUEUE_LEVELS[asked]


def _numbered(device: Device | None) -> bool:
    return device is not None and device.gpu_id is not None and device.render_minor is not None


def _arguments(placed: PlacedSlice, inventory: Inventory) -> Mapping[str, Any]:
    device = inventory.device(placed.device)
    if device is None or device.render_minor is None:
        raise LookupError(placed.device)  # not chargeable
    return {
        "gpu_id": device.gpu_id,
        "render_minor": device.render_minor,
        "limit_bytes": shown_bytes(placed.vram_bytes),
        "device_cus": device.cus,
        "unit": device.geometry.pair if device.geometry else 1,
        "cus": "" if placed.whole else str(placed.cus),
    }
