"""What the watch concludes from what it saw: whose the VRAM is, who uses too much, who does not get on.

Pure: samples in, conclusions out. What is counted leans to the lease's side, for a lease may end by it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nodeagent.domain.device import Device, Inventory
from nodeagent.domain.lease import HeldSlice

ALLOWANCE_BYTES = 64 << 20  # what a runtime may allocate beside the program's own before it counts
Owner = int | None  # the id of a lease; None: nobody's, a foreign user


@dataclass(frozen=True, slots=True)
class KfdUse:
    """One process on one GPU as KFD counts it, its secondary contexts included."""

    pid: int
    gpu_id: int
    vram_bytes: int = 0  # allocated by itself; what it imported is the exporter's
    queues: tuple[str, ...] = ()
    cu_occupancy: int | None = None  # CUs with waves in flight; None where the kernel does not say
    evicted_ms: int = 0


@dataclass(frozen=True, slots=True)
class DrmClient:
    """One open of a DRM node, which several processes may share by inheritance or passing."""

    pids: frozenset[int]
    pci: str | None  # None on the render nodes of partitions
    minor: int | None
    client: int
    resident_bytes: int
    shared_bytes: int | None  # exported or imported; None on kernels that do not say
    engine_ns: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at the node: what each process holds, and whose it is. Processes of no *owners* have ended."""

    kfd: tuple[KfdUse, ...]
    clients: tuple[DrmClient, ...]
    owners: Mapping[int, Owner]

    def pids(self, owner: Owner) -> frozenset[int]:
        return frozenset(pid for pid, whose in self.owners.items() if whose == owner)


@dataclass(frozen=True, slots=True)
class Over:
    """A lease's VRAM in one region, beyond its grant."""

    region: str
    used_bytes: int
    granted_bytes: int


def used(sample: Sample, inventory: Inventory) -> Mapping[tuple[int, str], int]:
    """VRAM by process and device key, bytes.

    KFD's buffers show in the DRM client of the same process too (amdgpu_drm_client memory stats): the larger
    of both figures counts, never the sum. A client that processes of different owners have open is nobody's.
    """
    kfd: defaultdict[tuple[int, str], int] = defaultdict(int)
    drm: defaultdict[tuple[int, str], int] = defaultdict(int)
    for one in sample.kfd:
        if one.pid in sample.owners and (device := inventory.of_gpu(one.gpu_id)):
            kfd[one.pid, device.key] += one.vram_bytes
    by_pid = {one.pid for one in sample.kfd}
    for client in sample.clients:
        device = device_of(client, inventory)
        holders = sorted(client.pids & sample.owners.keys(), key=lambda pid: (pid not in by_pid, pid))
        owners = {sample.owners[pid] for pid in holders}
        if device is not None and len(owners) == 1:
            drm[holders[0], device.key] += _own_bytes(client, owners.pop())
    return {key: max(kfd[key], drm[key]) for key in kfd.keys() | drm.keys()}


def _own_bytes(client: DrmClient, owner: Owner) -> int:
    """What the client allocated itself. Where the kernel does not tell that, no lease is charged for it."""
    if client.shared_bytes is None:
        return client.resident_bytes if owner is None else 0
    return max(0, client.resident_bytes - client.shared_bytes)


def device_of(client: DrmClient, inventory: Inventory) -> Device | None:
    """The device that the client opened: by its render node, else by a PCI address that is one device's."""
    for device in inventory.devices:
        if client.minor is not None and device.render_minor == client.minor:
            return device
    on_card = [device for device in inventory.devices if device.pci == client.pci]
    return on_card[0] if len(on_card) == 1 else None


def by_owner(
    by_process: Mapping[tuple[int, str], int], owners: Mapping[int, Owner]
) -> Mapping[Owner, Mapping[str, int]]:
    """VRAM by owner and device key, bytes."""
    sums: defaultdict[Owner, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for (pid, device), used_bytes in by_process.items():
        sums[owners[pid]][device] += used_bytes
    return sums


def by_region(by_device: Mapping[str, int], inventory: Inventory) -> dict[str, int]:
    """VRAM by dmem region, which is a card: devices of one card may draw on each other's memory."""
    sums: defaultdict[str, int] = defaultdict(int)
    for key, used_bytes in by_device.items():
        device = inventory.device(key)
        pool = inventory.pool(device.pool) if device else None
        if pool is not None:
            sums[pool.region] += used_bytes
    return dict(sums)


def granted(slices: Sequence[HeldSlice], inventory: Inventory) -> dict[str, int]:
    """What a lease's slices give it, by region, bytes."""
    sums: defaultdict[str, int] = defaultdict(int)
    for held in slices:
        pool = inventory.pool(held.placed.pool)
        if pool is not None:
            sums[pool.region] += held.placed.vram_bytes
    return dict(sums)


def overuse(given: Mapping[str, int], taken: Mapping[str, int], percent: float) -> tuple[Over, ...]:
    """The regions in which *taken* is beyond *given*, *percent* of it and `ALLOWANCE_BYTES`."""
    return tuple(
        Over(region, taken[region], given.get(region, 0))
        for region in sorted(taken)
        if taken[region] > given.get(region, 0) * (1 + percent / 100) + ALLOWANCE_BYTES
    )


def less_foreign(inventory: Inventory, foreign: Mapping[str, int], held: Iterable[HeldSlice]) -> Inventory:
    """*inventory* with what foreign users hold (bytes by device key) taken off what may be granted.

    Never below what slices hold already: no live lease is put in the wrong by a stranger.
    """
    if not foreign:
        return inventory
    of_pool: defaultdict[str, int] = defaultdict(int)
    held_of: defaultdict[str, int] = defaultdict(int)  # by pool and by device: their keys differ by a "/"
    for one in held:
        held_of[one.placed.pool] += one.placed.vram_bytes
        held_of[one.placed.device] += one.placed.vram_bytes
    for device in inventory.devices:
        of_pool[device.pool] += foreign.get(device.key, 0)
    pools = tuple(
        replace(pool, grantable_bytes=_left(pool.grantable_bytes, of_pool[pool.key], held_of[pool.key]))
        for pool in inventory.pools
    )
    devices = tuple(
        replace(
            device,
            grantable_bytes=_left(device.grantable_bytes, foreign.get(device.key, 0), held_of[device.key]),
            foreign_bytes=foreign.get(device.key, 0),
        )
        for device in inventory.devices
    )
    return replace(inventory, pools=pools, devices=devices)


def _left(grantable: int, foreign: int, held: int) -> int:
    return min(grantable, max(grantable - foreign, held, 0))


@dataclass(frozen=True, slots=True)
class Activity:
    """What a lease's work looks like from outside at one look; equal twice over, nothing was seen to move."""

    queues: frozenset[tuple[int, str]]  # pid, queue id
    occupancy: tuple[int | None, ...]
    vram: tuple[int, ...]
    engine_ns: int
    evicted_ms: int


@dataclass(frozen=True, slots=True)
class Still:
    """Since when (boot time, ns), and in which way, a lease has not been seen to get on."""

    activity: Activity
    why: str | None
    since_ns: int


def activity(sample: Sample, owner: Owner) -> Activity:
    """The activity of the processes of *owner*."""
    pids = sample.pids(owner)
    rows = sorted(
        (one for one in sample.kfd if one.pid in pids and one.queues), key=lambda one: (one.pid, one.gpu_id)
    )
    return Activity(
        queues=frozenset((one.pid, queue) for one in rows for queue in one.queues),
        occupancy=tuple(one.cu_occupancy for one in rows),
        vram=tuple(one.vram_bytes for one in rows),
        engine_ns=sum(client.engine_ns for client in sample.clients if client.pids & pids),
        evicted_ms=sum(one.evicted_ms for one in rows),
    )


def follow(before: Still | None, now: Activity, at_ns: int) -> Still:
    """Go on from *before* with one more look."""
    why = _why_still(before.activity, now) if before else None
    if before is not None and why is not None and why == before.why:
        return Still(now, why, before.since_ns)
    return Still(now, why, at_ns)


def _why_still(before: Activity, now: Activity) -> str | None:
    if not now.queues or before.queues != now.queues:
        return None
    if now.evicted_ms > before.evicted_ms:
        return "its queues are evicted again and again: the device's memory or queue slots are oversubscribed"
    if any(now.occupancy) and now == before:
        return "its waves stay on the same number of CUs and nothing else moves: a kernel may be hung"
    return None
