"""Scans the node again and again, and remembers what each pool uses when nobody works on it."""

from __future__ import annotations

from collections.abc import Callable

from nodeagent.adapters.discovery import discover
from nodeagent.adapters.drm import vram_used
from nodeagent.adapters.kfd import generation
from nodeagent.adapters.sysfs import SysTree
from nodeagent.domain.device import Inventory


class Scanner:
    """One sys tree under one site's settings.

    The idle baseline of a pool (firmware, display, page tables of nobody) is taken only while no lease holds
    it: else a tenant's own memory would shrink what may be granted. A pool that was busy at the first scan
    counts as idle at 0 until it was seen free. What *foreign* users hold of a pool by then is no baseline
    either: it is taken off elsewhere, for as long as they are there.
    """

    def __init__(
        self,
        tree: SysTree,
        *,
        reserve_percent: float,
        include_apus: bool,
        foreign: Callable[[str], int] = lambda pool: 0,
    ) -> None:
        self._tree = tree
        self._foreign = foreign
        self._reserve_percent = reserve_percent
        self._include_apus = include_apus
        self._idle: dict[str, int] = {}

    def generation(self) -> int | None:
        return generation(self._tree)

    def idle(self, pool: str) -> int | None:
        """What the pool used when nobody worked on it, bytes; None where it was never seen so."""
        return self._idle.get(pool)

    def scan(self, busy: frozenset[str]) -> Inventory:
        """Scan now; *busy* are the pools that some lease holds bytes of."""

        def idle_bytes(pool: str) -> int:
            if pool not in busy:
                used = vram_used(self._tree, pool)
                if isinstance(used, int):
                    self._idle[pool] = max(0, used - self._foreign(pool))
            return self._idle.get(pool, 0)

        return discover(
            self._tree,
            reserve_percent=self._reserve_percent,
            include_apus=self._include_apus,
            idle_bytes=idle_bytes,
        )
