"""Idle baselines: learned while no lease holds a pool, kept over a restart, void in another boot or epoch."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import asdict

import structlog

from nodeagent.domain.baseline import LOOKS, Baseline, epochs_of, settled
from nodeagent.domain.device import Inventory
from nodeagent.ledger.boot_file import BootFile
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.sampling import Look
from nodeagent.service.survey import Survey

log = structlog.get_logger()


class Baselines:
    """What is known of each pool: written by the watch, read by the scanner and by whoever plans a proof."""

    def __init__(self, file: BootFile[Baseline]) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._known: dict[str, Baseline] = {}

    def recall(self) -> None:
        """Take up what was known before the agent was started; nothing of another boot."""
        known = self._file.read()
        with self._lock:
            self._known = known

    def idle(self, pool: str, inventory: Inventory | None = None) -> int | None:
        """What *pool* used when nobody worked on it, bytes; None where it was never seen so.

        Nor in these epochs of its devices, where *inventory* says them: a scan cannot yet.
        """
        with self._lock:
            known = self._known.get(pool)
        return None if known is None or (inventory and not known.holds_in(inventory)) else known.idle_bytes

    def learn(self, pool: str, idle_bytes: int, inventory: Inventory) -> None:
        """Know it from now on."""
        baseline = Baseline(epochs_of(pool, inventory), idle_bytes)
        with self._lock:
            self._known = {**self._known, pool: baseline}
            self._file.keep({pool: asdict(one) for pool, one in self._known.items()})
        log.info("learned an idle baseline", pool=pool, idle_bytes=idle_bytes)


class IdleUse:
    """Learns what is used while nobody is known to: at once where nothing is known, else if some looks agree.

    A pool of which any slice is not free is never learned from: one that leaked is quarantined, and not idle.
    Nor any while the ledger may not know of a lease.
    A rise is an event: somebody's memory may have been left on the card.
    """

    def __init__(
        self,
        ledger: Ledger,
        survey: Survey,
        baselines: Baselines,
        used: Callable[[str], int | None],
        doubts: Callable[[], tuple[str, ...]],  # why what the ledger takes for free may be in use
    ) -> None:
        self._ledger = ledger
        self._survey = survey
        self._baselines = baselines
        self._used = used
        self._doubts = doubts
        self._readings: dict[str, deque[int]] = {}

    def note(self, look: Look) -> None:
        """Learn, and have the devices scanned anew where what may be granted has changed."""
        if self._doubts():
            return
        used = {pool.key: self._used(pool.key) for pool in look.inventory.pools}
        # Only now: whatever memory a lease had in those figures, its slice was in the ledger before that.
        held = {one.placed.pool for one in self._ledger.held()}
        free = {pool: size for pool, size in used.items() if size is not None and pool not in held}
        self._readings = {pool: one for pool, one in self._readings.items() if pool in free}
        known = look.by_pool()
        moved = [
            self._take(pool, max(0, size - known.get(pool, 0)), look.inventory) for pool, size in free.items()
        ]
        if any(moved):
            self._survey.look_again()

    def _take(self, pool: str, reading: int, inventory: Inventory) -> bool:
        """Take one reading of an idle pool; whether its baseline is another now."""
        readings = self._readings.setdefault(pool, deque(maxlen=LOOKS))
        readings.append(reading)
        known = self._baselines.idle(pool, inventory)
        idle = reading if known is None else settled(known, readings)
        if idle == known:
            return False
        if known is not None and idle > known:
            self._tell(pool, known, idle)
        self._baselines.learn(pool, idle, inventory)
        return True

    def _tell(self, pool: str, before: int, idle: int) -> None:
        with self._ledger.write(release=True) as tx:
            tx.event(
                "baseline_rose",
                uid=None,
                reason=f"{idle - before} bytes more than before are used on {pool}, by nobody that is known",
                data={"pool": pool, "before_bytes": before, "idle_bytes": idle},
            )
