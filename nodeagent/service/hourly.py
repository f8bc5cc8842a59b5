"""Once an hour: what each card uses when idle, and how it hangs on PCI Express; with an alarm on drift.

A leak in the driver shows over days and not in one look. Of links that are worse than they could be tells
`service.card_health`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from nodeagent.adapters.bounded import Bounded
from nodeagent.domain.clock import SECOND_NS, Clock
from nodeagent.domain.measures import PciLink
from nodeagent.domain.records import Json
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.sampling import Look

HOUR_NS = 3600 * SECOND_NS
LINK_SECONDS = 2.0  # for reading them all


class Kept(Protocol):
    """What outlives this process, though not the boot."""

    def read(self) -> dict[str, int]: ...

    def keep(self, entries: Mapping[str, Json]) -> None: ...


class Hourly:
    """Compares with the first record of this boot. Each alarm is told once for as long as it lasts."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        idle: Callable[[str], int | None],
        link: Callable[[str], PciLink | None],
        first: Kept,
        *,
        tolerance_bytes: int,
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._idle = idle
        self._link = link
        self._kept = first
        self._tolerance = tolerance_bytes
        self._bounded: Bounded[dict[str, PciLink]] = Bounded(LINK_SECONDS)
        self._first: dict[str, int] | None = None
        self._last_ns: int | None = None
        self._drifted: frozenset[str] = frozenset()  # pools that were told of
        self.links: Mapping[str, PciLink] = {}  # by PCI address, at the last record
        self.drift: Mapping[str, int] = {}  # bytes by pool

    def note(self, look: Look) -> None:
        """Record, when an hour has passed."""
        now = self._clock.boot_ns()
        if self._last_ns is not None and now - self._last_ns < HOUR_NS:
            return
        cards = sorted({device.pci for device in look.inventory.devices})
        self.links = self._bounded.call(lambda: self._links(cards)) or {}
        idle = {pool.key: size for pool in look.inventory.pools if (size := self._idle(pool.key)) is not None}
        self._compare(idle)
        self._tell(idle)
        self._last_ns = now

    def _tell(self, idle: Mapping[str, int]) -> None:
        """Write the record, and what is new of alarms."""
        drifted = {pool: size for pool, size in self.drift.items() if size >= self._tolerance}
        links: dict[str, Json] = {
            pci: {"width": one.width, "gts": one.gts} for pci, one in self.links.items()
        }
        with self._ledger.write(release=True) as tx:
            tx.event("recorded", uid=None, data={"idle_bytes": dict(idle), "links": links})
            for pool in sorted(drifted.keys() - self._drifted):
                why = f"{pool} uses {drifted[pool]} bytes more when idle than when this boot began"
                tx.event("idle_drifted", uid=None, reason=why, data={"of": pool})
        self._drifted = frozenset(drifted)

    def _links(self, cards: list[str]) -> dict[str, PciLink]:
        return {pci: one for pci in cards if (one := self._link(pci)) is not None}

    def _compare(self, idle: Mapping[str, int]) -> None:
        known = self._kept.read() if self._first is None else self._first
        self._first = {**idle, **known}
        if self._first != known:
            self._kept.keep(dict(self._first))
        self.drift = {pool: size - self._first[pool] for pool, size in idle.items()}


def size_of(told: object) -> int:
    """A kept size, if it is one. Raises ValueError."""
    if not isinstance(told, int) or isinstance(told, bool) or told < 0:
        raise ValueError(f"{told!r} is no size")
    return told
