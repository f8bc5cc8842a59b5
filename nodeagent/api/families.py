"""Families of metrics, made from rows. Labels are the agent's own words and numbers, never a user's text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from nodeagent.domain.device import Device, DeviceState, Inventory
from nodeagent.domain.histogram import Buckets
from nodeagent.domain.lease import HeldSlice
from nodeagent.domain.measures import Measures, Sensors, Use
from nodeagent.service.orders import Free
from nodeagent.service.survey import free_of

Row = tuple[Sequence[str], float | None]  # no value: no sample
_DEVICE = ("device", "product")
# HAMi's own labels of a host's GPU, and our key of the device.
_HOST = ("node", "device_index", "device_uuid", "device_type", "device")
_LEASE = ("lease", "device")
_NONE = Use()


def gauge(name: str, about: str, labels: Sequence[str], rows: Iterable[Row]) -> Metric:
    family = GaugeMetricFamily(name, about, labels=labels)
    for values, value in rows:
        if value is not None:
            family.add_metric(values, value)
    return family


def counter(name: str, about: str, labels: Sequence[str], rows: Iterable[Row]) -> Metric:
    family = CounterMetricFamily(name, about, labels=labels)
    for values, value in rows:
        if value is not None:
            family.add_metric(values, value)
    return family


def histogram(name: str, about: str, found: Buckets) -> Metric:
    bounds = [f"{bound:g}" for bound in found.bounds] + ["+Inf"]
    family = HistogramMetricFamily(name, about)
    family.add_metric((), list(zip(bounds, found.counts, strict=True)), found.total)
    return family


def of_devices(inventory: Inventory, held: tuple[HeldSlice, ...], measures: Measures) -> Iterator[Metric]:
    """What each device has, and what is left and used of it."""
    found = [((one.key, one.product), one, free_of(one, inventory, held)) for one in inventory.devices]
    use = _by_device(measures.use)

    def rows(name: str, about: str, value: Callable[[Device, Free, Use], float | None]) -> Metric:
        made = ((labels, value(one, free, use.get(one.key, _NONE))) for labels, one, free in found)
        return gauge(name, about, _DEVICE, made)

    yield rows("nodeagent_device_cus", "Compute units of the device.", lambda d, f, u: d.cus)
    yield rows("nodeagent_device_free_cus", "Compute units that no slice holds.", lambda d, f, u: len(f.cus))
    yield rows("nodeagent_device_grantable_vram_bytes", "VRAM that may be granted in all.",
               lambda d, f, u: d.grantable_bytes)  # fmt: skip
    yield rows("nodeagent_device_free_vram_bytes", "VRAM that no slice holds.", lambda d, f, u: f.vram_bytes)
    yield rows("nodeagent_device_foreign_vram_bytes", "VRAM of processes in no lease.",
               lambda d, f, u: d.foreign_bytes)  # fmt: skip
    yield rows("nodeagent_device_queue_slots", "Hardware queue slots.", lambda d, f, u: d.queue_slots)
    yield rows("nodeagent_device_free_queue_slots", "Queue slots that no slice holds.",
               lambda d, f, u: f.queue_slots)  # fmt: skip
    yield rows("nodeagent_device_free_shares", "Leases that may still join those on the device.",
               lambda d, f, u: f.shares)  # fmt: skip
    yield rows("nodeagent_device_queues", "Queues of processes, at the last look.", lambda d, f, u: u.queues)
    yield rows("nodeagent_device_busy_cus", "Compute units with waves in flight, at the last look.",
               lambda d, f, u: u.busy_cus)  # fmt: skip
    yield rows("nodeagent_device_evicted_seconds", "Time for which processes that live were evicted, in all.",
               lambda d, f, u: u.evicted_ms / 1000)  # fmt: skip
    yield rows("nodeagent_device_idle_vram_bytes", "VRAM that the card uses when nobody works on it.",
               lambda d, f, u: measures.idle_bytes.get(d.pool))  # fmt: skip
    yield rows("nodeagent_device_idle_drift_bytes", "How much more that is than when this boot began.",
               lambda d, f, u: measures.drift_bytes.get(d.pool))  # fmt: skip
    yield rows("nodeagent_device_healthy", "Whether the device may be granted from (1).",
               lambda d, f, u: float(d.state is DeviceState.HEALTHY))  # fmt: skip


def of_cards(node: str, inventory: Inventory, measures: Measures) -> Iterator[Metric]:
    """What the cards' sensors say, under HAMi's names; those of partitions are the card's, told once."""
    cards: dict[str, Device] = {}
    for device in inventory.devices:
        cards.setdefault(device.pci, device)

    def rows(name: str, about: str, value: Callable[[Sensors], float | None]) -> Metric:
        return gauge(name, about, _HOST, (
            ((node, str(one.ordinal), one.uuid or "", one.product, one.key),
             value(measures.sensors.get(pci, Sensors())))
            for pci, one in cards.items()
        ))  # fmt: skip

    yield rows("hami_host_gpu_memory_used_bytes", "VRAM in use, whoever uses it.", lambda s: s.used_bytes)
    yield rows("hami_host_gpu_utilization_ratio", "Percent of time the card was busy (0-100).",
               lambda s: s.busy_percent)  # fmt: skip
    yield rows("hami_host_gpu_temperature_celsius", "Temperature of the card.", lambda s: s.celsius)
    yield rows("hami_host_gpu_power_usage_watts", "Power that the card draws.", lambda s: s.watts)
    yield from _links(measures)
    yield gauge("nodeagent_ras_uncorrectable_errors", "Uncorrectable errors since the driver was loaded.",
                ("pci",), (((pci,), count) for pci, count in measures.uncorrectable.items()))  # fmt: skip
    yield counter("nodeagent_kernel_faults", "Lines of the kernel's log that tell of trouble with a card.",
                  ("pci", "fault"), measures.faults.items())  # fmt: skip


def _links(measures: Measures) -> Iterator[Metric]:
    found = measures.links.items()
    about = "Lanes of PCI Express that the card has, at the last hour."
    yield gauge("nodeagent_pcie_link_width", about, ("pci",), (((pci,), one.width) for pci, one in found))
    about = "Lanes that it could have."
    yield gauge(
        "nodeagent_pcie_link_max_width", about, ("pci",), (((pci,), one.most_width) for pci, one in found)
    )
    about = "Speed of a lane, at the last hour; an idle card may have slowed down."
    yield gauge(
        "nodeagent_pcie_link_gigatransfers", about, ("pci",), (((pci,), one.gts) for pci, one in found)
    )


def of_leases(inventory: Inventory, held: tuple[HeldSlice, ...], measures: Measures) -> Iterator[Metric]:
    """What each lease holds and uses. Its number is all that is said of it."""
    uuids = {device.key: device.uuid or "" for device in inventory.devices}
    index: dict[int, int] = {}
    vram: list[tuple[Sequence[str], HeldSlice]] = []
    for one in held:
        at = index[one.lease] = index.get(one.lease, -1) + 1
        vram.append(((str(one.lease), one.placed.device, str(at), uuids.get(one.placed.device, "")), one))

    def used(one: HeldSlice) -> Use:
        return measures.use.get((one.lease, one.placed.device), _NONE)

    labels = (*_LEASE, "vdevice_index", "device_uuid")
    yield gauge("hami_vgpu_memory_used_bytes", "VRAM that the lease's processes use, at the last look.",
                labels, ((row, used(one).vram_bytes) for row, one in vram))  # fmt: skip
    yield gauge("hami_vgpu_memory_limit_bytes", "VRAM that the lease was granted.", labels,
                ((row, one.placed.vram_bytes) for row, one in vram))  # fmt: skip

    def rows(name: str, about: str, value: Callable[[HeldSlice], float | None]) -> Metric:
        return gauge(name, about, _LEASE, ((row[:2], value(one)) for row, one in vram))

    yield rows("nodeagent_lease_cus", "Compute units of the lease.", lambda one: len(one.placed.cus))
    yield rows("nodeagent_lease_busy_cus", "Compute units with waves of the lease in flight.",
               lambda one: used(one).busy_cus)  # fmt: skip
    yield rows("nodeagent_lease_queue_slots", "Queue slots of the lease.", lambda one: one.placed.queue_slots)
    yield rows("nodeagent_lease_queues", "Queues of the lease's processes.", lambda one: used(one).queues)
    yield rows("nodeagent_lease_evicted_seconds", "Time for which its processes that live were evicted.",
               lambda one: used(one).evicted_ms / 1000)  # fmt: skip
    yield gauge("nodeagent_lease_idle_seconds", "Time without work of a lease that is idle.", ("lease",),
                (((str(lease),), seconds) for lease, seconds in measures.idle_seconds.items()))  # fmt: skip


def _by_device(use: Mapping[tuple[int | None, str], Use]) -> dict[str, Use]:
    """Everybody's use of each device together."""
    sums: dict[str, Use] = {}
    for (_, device), one in use.items():
        so_far = sums.get(device, _NONE)
        busy = [busy for busy in (so_far.busy_cus, one.busy_cus) if busy is not None]
        sums[device] = Use(
            so_far.vram_bytes + one.vram_bytes,
            so_far.queues + one.queues,
            sum(busy) if busy else None,
            so_far.evicted_ms + one.evicted_ms,
        )
    return sums
