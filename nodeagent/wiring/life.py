"""How a built agent begins, and how it leaves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import structlog

from nodeagent import __version__
from nodeagent.domain.errors import LedgerUnavailable
from nodeagent.service.baselines import Baselines
from nodeagent.service.engine_watch import EngineWatch
from nodeagent.service.reconcile import Reconciler
from nodeagent.service.sidecars import Sidecars
from nodeagent.service.watch import Watch
from nodeagent.wiring.leases import Base, Leases

log = structlog.get_logger()


class Directories(Protocol):
    """Directories below /run that the agent makes for its files."""

    def leave(self) -> None:
        """Take them away, as far as nothing of any lease or agent is in them."""


@dataclass(frozen=True, slots=True)
class Life:
    """The start and the stop of what was built."""

    base: Base
    leases: Leases
    reconciler: Reconciler
    watch: Watch
    baselines: Baselines
    sidecars: Sidecars
    directories: tuple[Directories, ...]
    engines: tuple[EngineWatch, ...]
    machine: str

    def start(self) -> None:
        """Recover what an earlier process left, and begin to look.

        What a disk that fails keeps from being done is logged, and done at a later look.
        """
        self._open()
        self.reconciler.listen()
        self.reconciler.recover()
        self.baselines.recall()
        self.reconciler.scan()
        self.watch.guarded_look()
        self.reconciler.run_once()
        self.base.changes.listen(self.reconciler.wake)
        self.reconciler.start()
        self.watch.start()
        for engine in self.engines:
            engine.start()

    def leave(self) -> None:
        """Answer who waits: this process is to end."""
        self.base.changes.close()

    def stop(self) -> None:
        """End the threads; every lease stays as it is."""
        for engine in self.engines:
            engine.stop()
        self.watch.stop()
        self.reconciler.stop()
        self.leases.releaser.close()
        self.base.ledger.close()
        self.sidecars.leave()
        for directories in self.directories:
            directories.leave()
        if self.base.tree is not None:
            self.base.tree.leave()

    def _open(self) -> None:
        """Open the ledger, with ids above whatever is left of a lost one."""
        ledger, tree = self.base.ledger, self.base.tree
        cgroups = tree.lease_ids() | tree.nested().keys() if tree else frozenset()
        ledger.open(floor=max(cgroups | self.sidecars.leases(), default=0))
        try:
            with ledger.write(release=True) as tx:
                tx.event("started", uid=None, data={"version": __version__, "machine": self.machine})
        except LedgerUnavailable as fault:
            log.error("the ledger takes nothing at this start", why=str(fault))
