"""What the hook and the supervisor know of devices: they charge requests that name one by number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodeagent.adapters.hook_format import HookDevice, shown_bytes
from nodeagent.domain.cuset import CuSet
from nodeagent.domain.device import Device, Inventory
from nodeagent.domain.lease import PlacedSlice
from nodeagent.service.effects import Arguments
from nodeagent.service.means import Setting


def chargeable(setting: Setting) -> bool:
    """Whether each device can be told from a request: by KFD's id, and by its render node."""
    return all(_numbered(setting.inventory.device(one.device)) for one in setting.placed)


def charged_devices(setting: Setting) -> list[Mapping[str, Any]]:
    """The devices of a `chargeable` setting for an effect's arguments, in the order of the slices."""
    return [_arguments(one, setting.inventory) for one in setting.placed]


def devices_of(arguments: Arguments) -> list[HookDevice]:
    """What `charged_devices` put into *arguments*."""
    return [HookDevice(**{**one, "cus": CuSet.parse(one["cus"])}) for one in arguments["devices"]]


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
