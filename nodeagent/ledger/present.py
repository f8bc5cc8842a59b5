"""The leases and drains that are there, in memory: every look, grant and list asks for them.

`Ledger` alone owns them. It loads them in its first transaction; each later one reads what it touched again
before it commits, and what came of it counts once that is done. What another process wrote is noticed by
SQLite's `data_version`, and everything is loaded anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sqlalchemy import Connection

from nodeagent.domain.lease import ENDED, HeldSlice, Lease, SliceState
from nodeagent.domain.records import Drain


@dataclass(frozen=True)
class Present:
    """As of one commit: leases that have not ended, or hold a slice still, by id; and every drain."""

    leases: Mapping[int, Lease]  # the lowest first
    drains: tuple[Drain, ...]

    def after(self, changed: Mapping[int, Lease], drains: tuple[Drain, ...]) -> Present:
        """The same when *changed* are as they say."""
        if not changed and drains == self.drains:
            return self
        there = {**self.leases, **changed}
        for lease in changed.values():
            if lease.state in ENDED and not any(map(_is_held, lease.slices)):
                del there[lease.id]
        return Present(dict(sorted(there.items())), drains)

    @cached_property
    def live(self) -> tuple[Lease, ...]:
        """Those that have not ended."""
        return tuple(lease for lease in self.leases.values() if lease.state not in ENDED)

    @cached_property
    def held(self) -> tuple[HeldSlice, ...]:
        """Every slice that is not free, by device."""
        held = (one for lease in self.leases.values() for one in lease.slices if _is_held(one))
        return tuple(sorted(held, key=lambda one: (one.placed.device, one.id)))


class Writers:
    """Notices commits of others than the one connection that writes."""

    def __init__(self) -> None:
        self._last: tuple[object, int] | None = None

    def others_wrote(self, connection: Connection) -> bool:
        """Whether anybody else may have, since this was asked last. *connection*: within its transaction."""
        raw: Any = connection.connection.dbapi_connection
        last, self._last = self._last, (raw, raw.execute("PRAGMA data_version").fetchone()[0])
        return last != self._last


def _is_held(one: HeldSlice) -> bool:
    return one.state is not SliceState.FREE
