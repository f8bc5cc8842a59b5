"""Events of what the process that replaces workers did: a worker alone writes the ledger."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from nodeagent.ledger.ledger import Ledger
from nodeagent.service.changes import Changes


class Source(Protocol):
    """See `nodeagent.adapters.news.News`."""

    def fileno(self) -> int: ...

    def hear(self) -> Iterable[Mapping[str, Any]]: ...


class Reloads:
    """A `nodeagent.service.vigil.Listener` that keeps what it heard until it is in the ledger.

    A message is what the event's data is to be; one with a *reason* is of a reload that failed.
    """

    def __init__(self, source: Source, ledger: Ledger, changes: Changes) -> None:
        self._source = source
        self._ledger = ledger
        self._changes = changes
        self._heard: deque[Mapping[str, Any]] = deque()

    def open(self) -> int:
        return self._source.fileno()

    def hear(self) -> bool:
        self._heard.extend(self._source.hear())
        return bool(self._heard)

    def act(self) -> None:
        while self._heard:
            told = dict(self._heard[0])
            why = told.pop("reason", None)
            with self._ledger.write(release=True) as tx:
                tx.event("reload_failed" if why else "reloaded", uid=None, reason=why, data=told)
            self._heard.popleft()
            self._changes.announce()

    def close(self) -> None:
        """It stays open: the next worker hears what this one did not."""
