"""Whether one slice fits on one device: checked in the order of `Code`, the first "no" is the answer.

Only queue slots that follow from the CUs, and were not asked for, are checked last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nodeagent.domain.cuset import CuSet
from nodeagent.domain.device import Device, DeviceState, Pool
from nodeagent.domain.geometry import Geometry
from nodeagent.domain.lease import HeldSlice, PlacedSlice
from nodeagent.domain.refusals import Code, DeviceRefusal
from nodeagent.domain.request import Policy, SliceRequest
from nodeagent.domain.selectors import mismatch
from nodeagent.domain.shapes import choose, largest_even, shared_set
from nodeagent.domain.sizes import size_text
from nodeagent.domain.sizing import Demand, demand
from nodeagent.domain.usage import Usage, earliest_end, holders, leases_of


@dataclass(frozen=True, slots=True)
class Offer:
    """A slice that fits on a device as things stand."""

    device: Device
    placed: PlacedSlice
    load: float  # how full the device is, see `Usage.load`
    joins: bool  # goes onto a shared set that is there already


@dataclass(frozen=True, slots=True)
class Site:
    """One device with its pool and what is held of both."""

    device: Device
    pool: Pool | None
    usage: Usage


def fit(site: Site, asked: SliceRequest, policy: Policy, shared_cu_percent: float) -> Offer | DeviceRefusal:
    """The slice that *asked* would get on the site's device, or why it gets none."""
    device, geometry, pool = site.device, site.device.geometry, site.pool
    if device.state not in (DeviceState.HEALTHY, DeviceState.DRAINING) or geometry is None or pool is None:
        return _no(device, Code.CARD_NOT_HEALTH, f"{device.state}: {device.reason or 'its pool is unknown'}")
    if device.state is DeviceState.DRAINING:
        return _no(device, Code.CARD_CORDONED, f"draining: {device.reason or 'no reason given'}")
    if filtered := mismatch(device, asked):
        return _no(device, *filtered)
    needs = demand(asked, device, geometry, policy, shared_cu_percent)
    # Slots that nobody asked for follow from the CUs: to name them before the CUs would hide the cause.
    asked_slots = asked.queue_slots is not None
    refused = (
        _exclusive(site, needs)
        or _shares(site)
        or (asked_slots and _queues(site, needs))
        or _memory(site, pool, needs)
    )
    if refused:
        return refused
    cus = _choose(site.usage, geometry, needs, shared_cu_percent)
    if cus is None:
        return _core(site, geometry, needs)
    return _queues(site, needs) or _offer(site, geometry, needs, cus)


def _no(device: Device, code: Code, why: str, blocking: Sequence[HeldSlice] = ()) -> DeviceRefusal:
    held_by = f"; held by {holders(blocking)}" if blocking else ""
    return DeviceRefusal(device.key, code, why + held_by, leases_of(blocking), earliest_end(blocking))


def _exclusive(site: Site, needs: Demand) -> DeviceRefusal | None:
    present = site.usage.present
    closed = [one for one in present if one.placed.exclusive]
    if closed:
        return _no(site.device, Code.EXCLUSIVE_CONFLICT, "held exclusively", closed)
    if needs.exclusive and present:
        return _no(
            site.device, Code.EXCLUSIVE_CONFLICT, "asks the device for itself, which is not idle", present
        )
    return None


def _shares(site: Site) -> DeviceRefusal | None:
    most, sharing = site.device.shares, leases_of(site.usage.present)
    if most is None or len(sharing) < most:
        return None
    why = f"{len(sharing)} leases share it, and {most} may"
    return _no(site.device, Code.TIME_SLICING_EXHAUSTED, why, site.usage.present)


def _queues(site: Site, needs: Demand) -> DeviceRefusal | None:
    total, used = site.device.queue_slots, site.usage.queue_slots
    if used + needs.queue_slots <= total:
        return None
    why = f"asks {needs.queue_slots} queue slots, {max(0, total - used)} of {total} free"
    blocking = site.usage.current if needs.queue_slots <= total else ()
    return _no(site.device, Code.TIME_SLICING_EXHAUSTED, why, blocking)


def _memory(site: Site, pool: Pool, needs: Demand) -> DeviceRefusal | None:
    asked, usage = needs.vram_bytes, site.usage
    for total, used, holding, of_what in (
        (site.device.grantable_bytes, usage.vram_bytes, usage.current, "grantable"),
        (pool.grantable_bytes, usage.pool_bytes, usage.pooled, f"grantable in pool {pool.key}"),
    ):
        if used + asked > total:
            free = f"{size_text(max(0, total - used))} of {size_text(total)} {of_what} free"
            why = f"asks {size_text(asked)} of VRAM, {free}"
            return _no(site.device, Code.INSUFFICIENT_MEMORY, why, holding if asked <= total else ())
    return None


def _choose(usage: Usage, geometry: Geometry, needs: Demand, shared_cu_percent: float) -> CuSet | None:
    free = geometry.everything - usage.cus
    if not needs.shared:
        return choose(geometry, free, needs.cus, needs.shape)
    return usage.shared_cus or shared_set(geometry, shared_cu_percent, free)


def _core(site: Site, geometry: Geometry, needs: Demand) -> DeviceRefusal:
    free = geometry.everything - site.usage.cus
    rounded = f" (granted as {needs.granted_cus})" if needs.granted_cus != needs.cus else ""
    what = " for the shared set" if needs.shared else ""
    why = (
        f"asks {needs.cus} CUs{rounded}{what}, {len(free)} of {geometry.cus} free"
        f" (largest even block {largest_even(geometry, free)})"
    )
    possible = choose(geometry, geometry.everything, needs.cus, needs.shape) is not None
    blocking = [one for one in site.usage.current if one.placed.cus.bits]
    return _no(site.device, Code.INSUFFICIENT_CORE, why, blocking if possible else ())


def _offer(site: Site, geometry: Geometry, needs: Demand, cus: CuSet) -> Offer:
    device = site.device
    placed = PlacedSlice(
        device=device.key,
        epoch=device.epoch,
        pool=device.pool,
        cus=cus,
        shared=needs.shared,
        exclusive=needs.exclusive,
        whole=needs.whole,
        cu_requested=needs.cus,
        effective_cus=geometry.effective(cus),
        vram_bytes=needs.vram_bytes,
        queue_slots=needs.queue_slots,
        shape=needs.shape,
    )
    joins = needs.shared and site.usage.shared_cus is not None
    return Offer(device, placed, site.usage.load(device), joins)
