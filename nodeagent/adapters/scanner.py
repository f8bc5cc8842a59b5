"""Scans the node again and again, and remembers what each pool uses when nobody works on it."""

from __future__ import annotations

from nodeagent.adapters.discovery import discover
from nodeagent.adapters.drm import vram_used
from nodeagent.adapters.kfd import generation
from nodeagent.adapters.sysfs import SysTree
from nodeagent.domain.device import Inventory


class Scanner:
    """One sys tree under one site's settings.

    The idle baseline of a pool (firmware, display, page tables of nobody) is taken only while no lease holds
    it: else a tenant's own memory would shrink what may be granted. A pool that was busy at the first scan
    counts as idle at 0 until it was seen free.
    """

    def __init__(self, tree: SysTree, *, reserve_percent: float, include_apus: bool) -> None:
        self._tree = tree
        self._reserve_percent = reserve_percent
        self._include_apus = include_apus
        self._idle: dict[str, int] = {}

    def generation(self) -> int | None:
        return generation(self._tree)

    def scan(self, busy: frozenset[str]) -> Inventory:
        """Scan now; *busy* are the pools that some lease holds bytes of."""

        def idle_bytes(pool: str) -> int:
            if pool not in busy:
                used = vram_used(self._tree, pool)
                if isinstance(used, int):
                    self._idle[pool] = used
            return self._idle.get(pool, 0)

        return discover(
            self._tree,
            reserve_percent=self._reserve_percent,
            include_apus=self._include_apus,
            idle_bytes=idle_bytes,
        )
