"""Whose devices are: those of Slurm, and those that the site keeps for some, are given to no others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from nodeagent.domain.device import Device, DeviceOwner, Inventory
from nodeagent.domain.gres import Gres, device_of
from nodeagent.domain.lease import HolderKind
from nodeagent.domain.refusals import Code, DeviceRefusal
from nodeagent.domain.request import SliceRequest
from nodeagent.domain.selectors import mismatch


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks for slices, or for whom. *administrator*: and may take others' device by naming it."""

    kind: HolderKind = HolderKind.PROCESS
    administrator: bool = False
    uid: int | None = None  # the owner of a subordinate one
    groups: frozenset[int] = frozenset()  # of those that the site's settings name


def barred(device: Device, asked: SliceRequest, asker: Asker) -> DeviceRefusal | None:
    """Why *device* is not for *asker*; None also where the request's filters leave it out anyway.

    An administrator who names the device has it all the same: to try a card that Slurm has drained. Not a
    job, whose devices are named by whom Slurm sends.
    """
    if mismatch(device, asked) is not None:
        return None
    slurm = asker.kind is HolderKind.SLURM
    if device.owner is DeviceOwner.LOCAL and slurm:
        return DeviceRefusal(device.key, Code.OWNED_LOCALLY, f"is not Slurm's: {device.owner_reason}")
    if not slurm and asker.administrator and any(name.strip() for name in asked.device):
        return None
    if device.owner is DeviceOwner.SLURM and not slurm:
        return DeviceRefusal(device.key, Code.OWNED_BY_SLURM, f"is Slurm's: {device.owner_reason}")
    reserved = device.reserved
    if reserved is not None and not reserved.admits(asker.kind, asker.uid, asker.groups):
        why = f"is reserved for {reserved.said} (devices.reserved)"
        return DeviceRefusal(device.key, Code.RESERVED_FOR_OTHERS, why)
    return None


def given_to(inventory: Inventory, gres: Gres, source: str) -> Inventory:
    """*inventory* with the devices that *gres*, read from *source*, names as Slurm's, with its numbers."""
    index = {device.key: gpu.index for gpu in gres.gpus if (device := device_of(gpu, inventory))}
    numbered = replace(
        inventory,
        devices=tuple(replace(one, slurm_index=index.get(one.key)) for one in inventory.devices),
    )
    why = {key: f"{source} has it as GPU {number}" for key, number in index.items()}
    return _owned(numbered, DeviceOwner.SLURM, lambda device: why.get(device.key))


def all_of(inventory: Inventory, owner: DeviceOwner, why: str) -> Inventory:
    """*inventory* with every device *owner*'s."""
    return _owned(inventory, owner, lambda device: why)


def _owned(inventory: Inventory, owner: DeviceOwner, why: Callable[[Device], str | None]) -> Inventory:
    devices = (
        device if (reason := why(device)) is None else replace(device, owner=owner, owner_reason=reason)
        for device in inventory.devices
    )
    return replace(inventory, devices=tuple(devices))
