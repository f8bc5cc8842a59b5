"""What is measured of the node and its leases, beside what the ledger books."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from nodeagent.domain.device import Inventory
from nodeagent.domain.histogram import Buckets
from nodeagent.domain.lease import LeaseState
from nodeagent.domain.watch import Owner, Sample


@dataclass(frozen=True, slots=True)
class Use:
    """What processes use of one device together."""

    vram_bytes: int = 0
    queues: int = 0
    busy_cus: int | None = None  # with waves in flight at the look; None where the kernel does not say
    evicted_ms: int = 0  # while these processes live


@dataclass(frozen=True, slots=True)
class Sensors:
    """One card's readings; None where it has no such sensor, or sleeps and was not woken."""

    used_bytes: int | None = None
    busy_percent: int | None = None
    celsius: float | None = None
    watts: float | None = None


@dataclass(frozen=True, slots=True)
class PciLink:
    """How a card hangs on PCI Express: lanes, and GT/s of each; None where the kernel does not know."""

    width: int
    most_width: int
    gts: float | None = None
    most_gts: float | None = None


@dataclass(frozen=True, slots=True)
class Measures:
    """Everything measured, as of now. Devices by key, sensors by PCI address, idle use by pool."""

    states: Mapping[LeaseState, int] = field(default_factory=dict)  # leases that have not ended
    look_age_seconds: float | None = None  # since *use* was looked at; None: not yet
    use: Mapping[tuple[Owner, str], Use] = field(default_factory=dict)
    over: frozenset[int] = frozenset()  # leases that use more VRAM than they were granted
    idle_seconds: Mapping[int, float] = field(default_factory=dict)  # of the leases that are idle
    sensors: Mapping[str, Sensors] = field(default_factory=dict)
    idle_bytes: Mapping[str, int] = field(default_factory=dict)
    drift_bytes: Mapping[str, int] = field(default_factory=dict)  # of those, since this boot began
    links: Mapping[str, PciLink] = field(default_factory=dict)  # by PCI address, at the last hour
    uncorrectable: Mapping[str, int] = field(default_factory=dict)  # RAS errors of this boot, by PCI address
    faults: Mapping[tuple[str, str], int] = field(default_factory=dict)  # by PCI address (or "") and kind
    log_lost: int = 0  # times that the kernel's log ran over
    grants: Buckets = Buckets()
    releases: Buckets = Buckets()


def use_of(
    sample: Sample, by_owner: Mapping[Owner, Mapping[str, int]], inventory: Inventory
) -> Mapping[tuple[Owner, str], Use]:
    """Who uses what, by owner and device: VRAM from *by_owner*, the rest as KFD counts it."""
    queues: defaultdict[tuple[Owner, str], int] = defaultdict(int)
    evicted: defaultdict[tuple[Owner, str], int] = defaultdict(int)
    busy: dict[tuple[Owner, str], int] = {}
    for one in sample.kfd:
        device = inventory.of_gpu(one.gpu_id)
        if device is None or one.pid not in sample.owners:
            continue
        key = (sample.owners[one.pid], device.key)
        queues[key] += len(one.queues)
        evicted[key] += one.evicted_ms
        if one.cu_occupancy is not None:
            busy[key] = busy.get(key, 0) + one.cu_occupancy
    vram = {(owner, key): size for owner, sizes in by_owner.items() for key, size in sizes.items()}
    return {
        key: Use(vram.get(key, 0), queues[key], busy.get(key), evicted[key])
        for key in {*vram, *queues}
    }  # fmt: skip
