"""Metrics, read through the agent at scrape time: nothing is counted twice, no label has a user's text."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from nodeagent.api.facade import Agent
from nodeagent.api.families import counter, gauge, histogram, of_cards, of_devices, of_leases
from nodeagent.domain.device import Inventory
from nodeagent.domain.lease import ENDED, HeldSlice, HolderKind, LeaseState, SliceState
from nodeagent.domain.measures import Measures
from nodeagent.domain.refusals import Code

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LIVE = tuple(state for state in LeaseState if state not in ENDED)


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
    """Asks the agent when it is scraped. *leases*: with what each lease holds and uses."""

    def __init__(self, agent: Agent, refusals: RefusalCounter, *, leases: bool = False) -> None:
        self._agent = agent
        self._refusals = refusals
        self._leases = leases

    def collect(self) -> Iterator[Metric]:
        node, inventory = self._agent.node(), self._agent.inventory()
        held, measures = self._agent.held(), self._agent.measures()
        yield gauge("nodeagent_info", "The agent; always 1.", ("version",), [((node.version,), 1)])
        yield gauge("nodeagent_ready", "Whether the agent grants now (1) or not (0).", (), [((), node.ready)])
        yield gauge("nodeagent_bypassed", "Whether nothing is enforced for a time (1).", (),
                    [((), node.bypass is not None)])  # fmt: skip
        observed = [((kind,), kind in node.modes.observed) for kind in HolderKind]
        yield gauge(
            "nodeagent_observed", "Whether holders of the kind are observed only (1).", ("kind",), observed
        )
        about = "Requests that were only observed since the agent started, by what would have come of them."
        yield counter("nodeagent_observed_requests", about, ("kind", "would"), node.observed.items())
        yield from self._of_node(measures)
        yield from of_devices(inventory, held, measures)
        yield from of_cards(node.name, inventory, measures)
        yield from _quarantined(inventory, held)
        if self._leases:
            yield from of_leases(inventory, held, measures)

    def _of_node(self, measures: Measures) -> Iterator[Metric]:
        states = [((state,), measures.states.get(state, 0)) for state in _LIVE]
        yield gauge("nodeagent_leases", "Leases that have not ended, by state.", ("state",), states)
        about = "Leases that use more VRAM than they were granted."
        yield gauge("nodeagent_leases_over_grant", about, (), [((), len(measures.over))])
        about = "Time since processes were looked at last."
        yield gauge("nodeagent_look_age_seconds", about, (), [((), measures.look_age_seconds)])
        about = "Times that lines of the kernel's log, or of other sources, were lost unread."
        yield counter("nodeagent_kernel_log_lost", about, (), [((), measures.log_lost)])
        refused = [((code,), count) for code, count in self._refusals.counts().items()]
        about = "Refused requests since the agent started, by code."
        yield counter("nodeagent_refusals", about, ("code",), refused)
        about = "From a request to its lease, of those that were granted at once."
        yield histogram("nodeagent_grant_seconds", about, measures.grants)
        about = "From the begin of a release to the proof that all slices are clean."
        yield histogram("nodeagent_release_seconds", about, measures.releases)


def _quarantined(inventory: Inventory, held: tuple[HeldSlice, ...]) -> Iterator[Metric]:
    unclean = [one.placed for one in held if one.state is SliceState.QUARANTINED]
    count = Counter(one.device for one in unclean)
    size: Counter[str] = Counter()
    for one in unclean:
        size[one.device] += one.vram_bytes
    keys = [device.key for device in inventory.devices]
    about = "Slices that are not proved clean."
    yield gauge("nodeagent_quarantined_slices", about, ("device",), [((key,), count[key]) for key in keys])
    about = "VRAM of slices that are not proved clean."
    yield gauge("nodeagent_quarantined_vram_bytes", about, ("device",), [((key,), size[key]) for key in keys])


def exposition(collector: Collector) -> str:
    """The Prometheus text format of what *collector* gives now."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry).decode("utf-8")
