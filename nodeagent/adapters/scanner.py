"""Scans the node again and again, under one site's settings."""

from __future__ import annotations

from collections.abc import Callable

from nodeagent.adapters.discovery import discover
from nodeagent.adapters.kfd import generation
from nodeagent.adapters.sysfs import SysTree
from nodeagent.domain.device import Inventory


class Scanner:
    """One sys tree. *idle* gives what a pool uses when nobody works on it, bytes: it is never grantable.

    A pool of which that is not known counts as idle at 0, whatever it uses: that may be a lease's own.
    """

    def __init__(
        self,
        tree: SysTree,
        *,
        reserve_percent: float,
        include_apus: bool,
        idle: Callable[[str], int | None] = lambda pool: None,
    ) -> None:
        self._tree = tree
        self._idle = idle
        self._reserve_percent = reserve_percent
        self._include_apus = include_apus

    def generation(self) -> int | None:
        return generation(self._tree)

    def scan(self) -> Inventory:
        """Scan now."""
        return discover(
            self._tree,
            reserve_percent=self._reserve_percent,
            include_apus=self._include_apus,
            idle_bytes=lambda pool: self._idle(pool) or 0,
        )
