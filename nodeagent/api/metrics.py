"""Metrics, read through the agent at scrape time: nothing is counted twice, no label has a user's text."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nodeagent.api.facade import Agent
from nodeagent.domain.device import DeviceState, Inventory
from nodeagent.domain.lease import ENDED, HeldSlice, LeaseState, SliceState
from nodeagent.domain.refusals import Code
from nodeagent.service.orders import Caller
from nodeagent.service.survey import free_of

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PAGE = 500
_LIVE = tuple(state for state in LeaseState if state not in ENDED)
_DEVICE_LABELS = ("device", "product")


class RefusalCounter:
    """Refusals since the agent started, by code."""

    def __init__(self) -> None:
        self._counts: Counter[Code] = Counter()
        self._lock = threading.Lock()

    def count(self, code: Code) -> None:
        with self._lock:
            self._counts[code] += 1

    def counts(self) -> dict[Code, int]:
        with self._lock:
            return {code: self._counts[code] for code in Code}


class AgentCollector(Collector):
    """Asks the agent when it is scraped. *reader*, the caller that the agent sees, must see all leases."""

    def __init__(self, agent: Agent, refusals: RefusalCounter, reader: Caller) -> None:
        self._agent = agent
        self._refusals = refusals
        self._reader = reader

    def collect(self) -> Iterator[Metric]:
        node = self._agent.node()
        info = GaugeMetricFamily("nodeagent_info", "The agent; always 1.", labels=("version",))
        info.add_metric((node.version,), 1)
        yield info
        yield GaugeMetricFamily(
            "nodeagent_ready", "Whether the agent grants now (1) or not (0).", value=float(node.ready)
        )
        yield self._leases()
        inventory, held = self._agent.inventory(), self._agent.held()
        yield from self._devices(inventory, held)
        yield self._quarantined(inventory, held)
        refusals = CounterMetricFamily(
            "nodeagent_refusals", "Refused requests since the agent started, by code.", labels=("code",)
        )
        for code, count in self._refusals.counts().items():
            refusals.add_metric((code,), count)
        yield refusals

    def _leases(self) -> Metric:
        counts = Counter(dict.fromkeys(_LIVE, 0))
        after = 0
        while True:
            page = self._agent.leases(self._reader, state=frozenset(_LIVE), after=after, limit=PAGE)
            counts.update(lease.state for lease in page)
            if len(page) < PAGE:
                break
            after = page[-1].id
        family = GaugeMetricFamily(
            "nodeagent_leases", "Leases that have not ended, by state.", labels=("state",)
        )
        for state in _LIVE:
            family.add_metric((state,), counts[state])
        return family

    @staticmethod
    def _devices(inventory: Inventory, held: tuple[HeldSlice, ...]) -> Iterator[Metric]:
        cus = _device_gauge("nodeagent_device_cus", "Compute units of the device.")
        free_cus = _device_gauge("nodeagent_device_free_cus", "Compute units that no slice holds.")
        vram = _device_gauge("nodeagent_device_grantable_vram_bytes", "VRAM that may be granted in all.")
        free_vram = _device_gauge("nodeagent_device_free_vram_bytes", "VRAM that no slice holds.")
        foreign = _device_gauge("nodeagent_device_foreign_vram_bytes", "VRAM of processes in no lease.")
        slots = _device_gauge("nodeagent_device_free_queue_slots", "Queue slots that no slice holds.")
        healthy = _device_gauge("nodeagent_device_healthy", "Whether the device may be granted from (1).")
        for device in inventory.devices:
            labels = (device.key, device.product)
            free = free_of(device, inventory, held)
            cus.add_metric(labels, device.cus)
            free_cus.add_metric(labels, len(free.cus))
            vram.add_metric(labels, device.grantable_bytes)
            free_vram.add_metric(labels, free.vram_bytes)
            foreign.add_metric(labels, device.foreign_bytes)
            slots.add_metric(labels, free.queue_slots)
            healthy.add_metric(labels, float(device.state is DeviceState.HEALTHY))
        yield from (cus, free_cus, vram, free_vram, foreign, slots, healthy)

    @staticmethod
    def _quarantined(inventory: Inventory, held: tuple[HeldSlice, ...]) -> Metric:
        found = Counter(one.placed.device for one in held if one.state is SliceState.QUARANTINED)
        family = GaugeMetricFamily(
            "nodeagent_quarantined_slices", "Slices that are not proved clean.", labels=("device",)
        )
        for device in inventory.devices:
            family.add_metric((device.key,), found[device.key])
        return family


def exposition(collector: Collector) -> str:
    """The Prometheus text format of what *collector* gives now."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry).decode("utf-8")


def _device_gauge(name: str, about: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, about, labels=_DEVICE_LABELS)
