"""Two devices of one node, for an API that shows them."""

from __future__ import annotations

from nodeagent.domain.device import Device, DeviceState, Inventory, Link, Pool, Skipped
from nodeagent.domain.errors import InvalidField, UnknownThing
from nodeagent.domain.geometry import Geometry
from nodeagent.domain.selectors import named

GIB = 1 << 30


def make_device(pci: str, ordinal: int) -> Device:
    return Device(
        key=f"{pci}/0",
        epoch=1,
        pci=pci,
        partition=0,
        render_node=f"renderD{128 + ordinal}",
        kfd_node=ordinal + 2,
        ordinal=ordinal,
        gpu_id=4096 + ordinal,
        unique_id=0xABCDEF0123456780 + ordinal,
        product="AMD Instinct MI300X",
        gfx="gfx942",
        geometry=Geometry(cus=304, xccs=8, engines=4, arrays=1, array_cus=10, pair=1),
        pool=f"drm/{pci}/vram",
        vram_bytes=192 * GIB,
        grantable_bytes=190 * GIB,
        queue_slots=24,
        numa_node=0,
        hive=0x1234,
        peers=(Link(f"0000:{ordinal:02x}:00.0/0", "xgmi", 15),),
        compute_partition="SPX",
        memory_partition="NPS1",
        state=DeviceState.HEALTHY,
        reason=None,
        uuid=f"GPU-{0xABCDEF0123456780 + ordinal:016x}",
    )


def make_inventory() -> Inventory:
    devices = (make_device("0000:c1:00.0", 0), make_device("0000:c2:00.0", 1))
    pools = tuple(Pool(d.pool, d.pool, d.vram_bytes, d.grantable_bytes) for d in devices)
    return Inventory(generation=2, devices=devices, pools=pools, skipped=(Skipped(9, "EPERM"),))


def known(inventory: Inventory, name: str) -> tuple[Device, ...]:
    """What the service makes of a name."""
    try:
        return named(inventory, name, "device")
    except InvalidField as fault:
        raise UnknownThing(fault.why) from fault
