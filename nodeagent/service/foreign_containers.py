"""Ends containers that hold a GPU and have no lease, where the site wants that.

By proof that the process with the GPU is in that container, and that it has no live lease's note.
"""

from __future__ import annotations

import contextlib

from nodeagent.adapters.container_processes import LeaseMounts, container_of
from nodeagent.domain.errors import OutsideFault
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.engines import Engines


class ForeignContainers:
    """*seconds* is the time that one has between being asked to end and being killed."""

    def __init__(self, ledger: Ledger, engines: Engines, mounts: LeaseMounts, seconds: float) -> None:
        self._ledger = ledger
        self._engines = engines
        self._mounts = mounts
        self._seconds = seconds

    def stop(self, pid: int) -> str | None:
        """Stop the container that *pid* provably is in; its id, or None where there is none to stop."""
        container = container_of(pid)
        found = None if container is None else self._engines.first_process(container, [pid])
        if container is None or found is None:
            return None
        source, _, first = found
        if self._mounts.of(first) in self._ledger.present():
            return None
        with contextlib.suppress(OutsideFault):
            source.stop(container, round(self._seconds))
            return container
        return None
