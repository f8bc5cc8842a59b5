"""Leases that hold a GPU and do nothing with it. Pure: looks in, conclusions out.

What cannot be measured is never idle: a lease may end by it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from nodeagent.domain import watch
from nodeagent.domain.device import Device, Inventory
from nodeagent.domain.geometry import every_nth
from nodeagent.domain.lease import AnchorKind, Lease
from nodeagent.domain.watch import Activity, Sample

FEWEST_LOOKS = 10  # that show no work, however short the time that a site allows
_OWN_START = (AnchorKind.PROCESS, AnchorKind.CGROUP, AnchorKind.CONTAINER)  # these are armed by their holder


@dataclass(frozen=True, slots=True)
class Quiet:
    """Since when (boot time, ns), and for how many looks, a lease has done no work; *sdma_us*: its copies."""

    activity: Activity
    since_ns: int
    looks: int
    sdma_us: int


@dataclass(frozen=True, slots=True)
class Idle:
    """An idle lease: since when, and when it ends by that (both boot time, ns); None: it does not."""

    since_ns: int
    ends_ns: int | None


def has_begun(lease: Lease, sample: Sample) -> bool:
    """Whether the holder has come: it was seen alive or, where it holds by time alone, on a GPU."""
    return (lease.anchor.kind in _OWN_START and lease.anchor.armed) or bool(sample.pids(lease.id))


def works(before: Activity, now: Activity) -> bool:
    """Whether two looks at a lease's processes show work: waves, or anything that has moved between them."""
    return any(now.occupancy) or now != before


def unmeasured(lease: Lease, sample: Sample, inventory: Inventory, strangers: Collection[str]) -> bool:
    """Whether work of *lease* could be unseen: its waves are not counted, or its programs may be elsewhere.

    *strangers*: keys of the devices that processes of no lease use.
    """
    pids = sample.pids(lease.id)
    if not pids:
        return any(held.placed.device in strangers for held in lease.slices)
    busy = [one for one in sample.kfd if one.pid in pids and one.queues]
    return any(
        one.cu_occupancy is None or not _counts_waves(inventory.of_gpu(one.gpu_id), lease) for one in busy
    )


def uncounted(device: Device) -> str | None:
    """Why the driver counts no waves on *device*, or None as far as is known without looking at a process."""
    if device.partition:
        return "is not the first partition of its card"
    if device.gfx and not device.gfx.startswith("gfx9"):
        return f"{device.gfx} tells no cu_occupancy"
    return None


def _counts_waves(device: Device | None, lease: Lease) -> bool:
    """Whether the driver's count says anything of *lease* there: it is of the card's first XCC alone.

    kfd_get_cu_occupancy asks for instance 0 and multiplies, for every partition of the card.
    """
    if device is None or uncounted(device):
        return False
    xccs = device.geometry.xccs if device.geometry else 1
    slices = [held.placed for held in lease.slices if held.placed.device == device.key]
    return all(one.whole or every_nth(one.cus.bits, 0, xccs) for one in slices)


def strangers_on(sample: Sample, inventory: Inventory) -> frozenset[str]:
    """Keys of the devices that processes of no lease have open or use."""
    theirs = sample.pids(None)
    by_kfd = (inventory.of_gpu(one.gpu_id) for one in sample.kfd if one.pid in theirs)
    by_drm = (watch.device_of(client, inventory) for client in sample.clients if client.pids & theirs)
    return frozenset(device.key for device in (*by_kfd, *by_drm) if device is not None)
