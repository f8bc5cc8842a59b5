"""Measures for metrics: kept by those who look and act anyway, and gathered when somebody asks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping

from nodeagent.adapters.bounded import Bounded
from nodeagent.domain.clock import SECOND_NS, Clock
from nodeagent.domain.idle import Idle
from nodeagent.domain.measures import Measures, Sensors, Use, use_of
from nodeagent.domain.watch import Owner
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.histogram import Histogram
from nodeagent.service.hourly import Hourly
from nodeagent.service.kernel_faults import KernelFaults
from nodeagent.service.sampling import Look
from nodeagent.service.survey import Survey

SENSOR_SECONDS = 2.0  # for reading them all: a card that hangs does not answer
FRESH_SECONDS = 1.0  # that readings serve whoever asks


class SensorReader:
    """Reads the cards' sensors for all who ask within a second; nobody waits longer than two for a card."""

    def __init__(self, read: Callable[[str], Sensors]) -> None:
        self._read = read
        self._bounded: Bounded[dict[str, Sensors]] = Bounded(SENSOR_SECONDS)
        self._lock = threading.Lock()
        self._known: Mapping[str, Sensors] = {}
        self._until = 0.0  # monotonic seconds

    def of(self, cards: Collection[str]) -> Mapping[str, Sensors]:
        """By PCI address; none where a card does not answer in time."""
        with self._lock:
            if time.monotonic() >= self._until:
                self._known = self._bounded.call(lambda: {pci: self._read(pci) for pci in cards}) or {}
                self._until = time.monotonic() + FRESH_SECONDS
            return self._known


class Measuring:
    """What the watch saw last, how long grants and releases took, and what the cards' sensors say."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        survey: Survey,
        sensors: SensorReader,
        idle: Callable[[str], int | None],
        hourly: Hourly,
        faults: KernelFaults | None,
    ) -> None:
        self.grants = Histogram()
        self.releases = Histogram()
        self._ledger = ledger
        self._clock = clock
        self._survey = survey
        self._sensors = sensors
        self._idle = idle
        self._hourly = hourly
        self._faults = faults
        self._use: Mapping[tuple[Owner, str], Use] = {}
        self._over: frozenset[int] = frozenset()
        self._idle_leases: Mapping[int, Idle] = {}
        self._looked_ns: int | None = None

    def note(self, look: Look) -> None:
        """Keep what *look* shows: a scrape reads no process. Then the looks that are for measures alone."""
        self._use = use_of(look.sample, look.by_owner, look.inventory)
        self._looked_ns = self._clock.boot_ns()
        if self._faults is not None:
            self._faults.note(look)
        self._hourly.note(look)

    def note_over(self, leases: frozenset[int]) -> None:
        """Keep which leases use more than they were granted."""
        self._over = leases

    def note_idle(self, leases: Mapping[int, Idle]) -> None:
        """Keep which leases are idle."""
        self._idle_leases = leases

    def idle(self, lease_id: int) -> Idle | None:
        """Since when the lease is idle; None: it works, or that is not measured."""
        return self._idle_leases.get(lease_id)

    def measures(self) -> Measures:
        """Everything, as of now; reads the ledger, and never waits for its writer."""
        found, looked = self._survey.shown(), self._looked_ns
        idle = {pool.key: self._idle(pool.key) for pool in found.pools}
        now, resting = self._clock.boot_ns(), self._idle_leases
        return Measures(
            states=self._ledger.states(),
            look_age_seconds=None if looked is None else (self._clock.boot_ns() - looked) / SECOND_NS,
            use=self._use,
            over=self._over,
            idle_seconds={lease: (now - one.since_ns) / SECOND_NS for lease, one in resting.items()},
            sensors=self._sensors.of(sorted({device.pci for device in found.devices})),
            idle_bytes={pool: size for pool, size in idle.items() if size is not None},
            drift_bytes=self._hourly.drift,
            links=self._hourly.links,
            uncorrectable=self._survey.uncorrectable(),
            faults=self._faults.counts() if self._faults else {},
            log_lost=self._faults.lost if self._faults else 0,
            grants=self.grants.buckets(),
            releases=self.releases.buckets(),
        )
