"""Scans the node again and again, under one site's settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from nodeagent.adapters.discovery import discover
from nodeagent.adapters.kfd import generation
from nodeagent.adapters.sysfs import SysTree
from nodeagent.domain.device import Inventory
from nodeagent.domain.device_rules import DeviceRules


class Kept(Protocol):
    """What outlives this process, though not the boot."""

    def read(self) -> dict[str, str]: ...

    def keep(self, entries: Mapping[str, str]) -> None: ...


class Scanner:
    """One sys tree. *idle* gives what a pool uses when nobody works on it, bytes: it is never grantable.

    A pool of which that is not known counts as idle at 0, whatever it uses: that may be a lease's own.
    Devices keep the keys that they had: *names* has them by mark.
    """

    def __init__(
        self,
        tree: SysTree,
        *,
        reserve_percent: float,
        include_apus: bool,
        idle: Callable[[str], int | None] = lambda pool: None,
        names: Kept | None = None,
        rules: DeviceRules | None = None,
    ) -> None:
        self._tree = tree
        self._idle = idle
        self._reserve_percent = reserve_percent
        self._include_apus = include_apus
        self._kept = names
        self._rules = rules
        self._names: dict[str, str] | None = None

    def generation(self) -> int | None:
        return generation(self._tree)

    def scan(self) -> Inventory:
        """Scan now."""
        if self._names is None:
            self._names = self._kept.read() if self._kept else {}
        found = discover(
            self._tree,
            reserve_percent=self._reserve_percent,
            include_apus=self._include_apus,
            idle_bytes=lambda pool: self._idle(pool) or 0,
            names=self._names,
            rules=self._rules,
        )
        self._remember({one.mark: one.key for one in found.devices if one.mark})
        return found

    def _remember(self, names: Mapping[str, str]) -> None:
        known = self._names or {}
        if names.items() <= known.items():
            return
        self._names = {**known, **names}
        if self._kept is not None:
            self._kept.keep(self._names)


def named(told: Any) -> str:
    """A kept key, if it is one. Raises ValueError."""
    if not isinstance(told, str) or not told.rpartition("/")[2].isdecimal():
        raise ValueError(f"{told!r} is no device's key")
    return told
