"""What a lease puts into a workload's environment, and the compute guarantee that this amounts to."""

from __future__ import annotations

from collections.abc import Sequence

from nodeagent.domain.cumask import format_mask, parse_mask
from nodeagent.domain.cuset import CuSet
from nodeagent.domain.device import Device, Inventory
from nodeagent.domain.errors import AgentError
from nodeagent.domain.guarantee import Compute, Guarantee
from nodeagent.domain.lease import PlacedSlice

# Other ways to choose or mask devices: with two of them set, one indexes what the other left over.
_UNSET = (
    "HIP_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ROC_GLOBAL_CU_MASK",
    "HSA_CU_MASK_SKIP_INIT",
)


def environment(lease_id: int, slices: Sequence[PlacedSlice], inventory: Inventory) -> dict[str, str | None]:
    """Variables to set and, where None, to unset. Lists follow the slices, as do the indexes a program sees.

    Raises:
        AgentError: a device is gone, or the mask would not be read back as the slices' CUs.
    """
    devices = [_device(one, inventory) for one in slices]
    values: dict[str, str | None] = {
        "ROCR_VISIBLE_DEVICES": _visible(devices),
        "HSA_CU_MASK": _checked_mask(slices, devices),
        # One number for all devices of a process: the smallest, so that no device is over-subscribed.
        "GPU_MAX_HW_QUEUES": str(min(one.queue_slots for one in slices)),
        "GPULEASE_ID": str(lease_id),
        "GPULEASE_VRAM_BYTES": ",".join(str(one.vram_bytes) for one in slices),
        "GPULEASE_DEVICES": ",".join(one.device for one in slices),
    }
    return values | dict.fromkeys(_UNSET)


def guarantee_of(slices: Sequence[PlacedSlice], inventory: Inventory) -> Guarantee:
    """What the environment alone holds: the compute tier of the weakest slice; memory is advisory.

    `Guarantee.with_holds` adds what the node's means hold.
    """
    order = list(Compute)
    tiers = [_compute(one, inventory) for one in slices]
    return Guarantee(compute=max(tiers, key=order.index, default=Compute.NONE))


def _compute(placed: PlacedSlice, inventory: Inventory) -> Compute:
    if not placed.whole:
        return Compute.MASK
    device = inventory.device(placed.device)
    return Compute.PARTITION if device and _partitioned(device, inventory) else Compute.EXCLUSIVE


def _partitioned(device: Device, inventory: Inventory) -> bool:
    if device.compute_partition is not None or device.divided:
        return device.divided
    # By partition, not by key: old kernels give several cards one location id, and so one PCI address.
    return any(other.pci == device.pci and other.partition != device.partition for other in inventory.devices)


def _device(placed: PlacedSlice, inventory: Inventory) -> Device:
    device = inventory.device(placed.device)
    if device is None:
        raise AgentError(f"{placed.device}: no such device any more; rescan and grant again")
    return device


def _visible(devices: Sequence[Device]) -> str:
    """UUIDs, which survive a change of numbering, where every device has its own; else ROCr's indexes."""
    uuids = [device.uuid for device in devices]
    named = [uuid for uuid in uuids if uuid is not None]
    if len(set(named)) == len(devices):
        return ",".join(named)
    return ",".join(str(device.ordinal) for device in devices)


def _checked_mask(slices: Sequence[PlacedSlice], devices: Sequence[Device]) -> str | None:
    sets = [CuSet() if one.whole else one.cus for one in slices]
    for one, device in zip(slices, devices, strict=True):
        if not one.whole and (not one.cus or not one.cus <= CuSet.span(0, device.cus)):
            raise AgentError(f"{one.device}: CUs {str(one.cus) or 'none'} are no mask of {device.cus} CUs")
    if not any(sets):
        return None
    text = format_mask(sets)
    read = parse_mask(text, gpus=len(devices), cus=max(device.cus for device in devices))
    wanted = {gpu: cus for gpu, cus in enumerate(sets) if cus}
    if read.error or read.dropped or dict(read.sets) != wanted:
        raise AgentError(f"HSA_CU_MASK={text}: ROCr would read {dict(read.sets)}, {read.error or 'no error'}")
    return text
