"""Ends containers that hold a GPU and have no lease, where the site wants that.

The cgroup of a process is named for a container by whoever made it, a user too. So the container's own first
process, as its engine knows it, must be in that very cgroup; and it must have no live lease's note.
"""

from __future__ import annotations

from nodeagent.adapters.container_processes import LeaseMounts, container_of, in_container_of
from nodeagent.domain.container import Engine
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
        if container is None:
            return None
        for engine in Engine:
            source = self._engines.source(engine)
            if source is None:
                continue
            try:
                running = source.running(container)
                if running is None or running.pid is None or not self._foreign(pid, running.pid, container):
                    continue
                source.stop(container, round(self._seconds))
                return container
            except OutsideFault:
                continue
        return None

    def _foreign(self, pid: int, first: int, container: str) -> bool:
        lease = self._mounts.of(first)
        return in_container_of(pid, first, container) and lease not in self._ledger.present()
