"""The watch: who really uses the GPUs, lease by lease, every few seconds, in a thread of its own.

It grants nothing and frees nothing: it writes events, ends a lease where the site says so, and tells the
survey what foreign users hold.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.dmem import DmemController
from nodeagent.domain.clock import Clock
from nodeagent.domain.errors import AgentError
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.changes import Changes
from nodeagent.service.foreign import Foreign, ForeignUsers
from nodeagent.service.overuse import Overuse
from nodeagent.service.release import Releaser
from nodeagent.service.sampling import Note, Sampler, Sources
from nodeagent.service.stalled import Stalled
from nodeagent.service.survey import Survey

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class WatchPolicy:
    """The site's settings."""

    seconds: float = 5.0
    kill: bool = False
    tolerance_percent: float = 2.0
    stalled_seconds: float = 600.0


class Watch:
    """Looks every few seconds. Its memory is this process's: after a restart two new looks are needed."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        survey: Survey,
        releaser: Releaser,
        changes: Changes,
        tree: CgroupTree | None,
        dmem: DmemController | None,
        sources: Sources,
        foreign: Foreign,
        policy: WatchPolicy = WatchPolicy(),
        further: Sequence[Note] = (),
        stop: Callable[[int], str | None] | None = None,
        over: Callable[[frozenset[int]], None] = lambda leases: None,
        spared: Callable[[], bool] = lambda: False,  # whether nobody is to be ended now
    ) -> None:
        self._sampler = Sampler(ledger, clock, survey, tree, sources)
        self._notes: tuple[Note, ...] = (
            ForeignUsers(ledger, changes, foreign, stop),
            Overuse(
                ledger,
                releaser,
                changes,
                dmem,
                self._sampler,
                kill=lambda: policy.kill and not spared(),
                tolerance_percent=policy.tolerance_percent,
                known=over,
            ),
            Stalled(ledger, clock, changes, sources.sdma_us, seconds=policy.stalled_seconds),
            *further,
        )
        self._seconds = policy.seconds
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._failing: str | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def guarded_look(self) -> None:
        """One look; a fault is logged when it is a new one, and the next look is taken all the same."""
        why, unforeseen = None, None
        try:
            self.look()
        except (AgentError, OSError) as fault:
            why = str(fault)
        except Exception as fault:
            why, unforeseen = repr(fault), fault
        if why != self._failing:
            self._failing = why
            if why is None:
                log.info("the watch works again")
            else:
                log.error("the watch failed", why=why, exc_info=unforeseen)

    def look(self) -> None:
        """Take one look at the whole node, and note what it shows."""
        look = self._sampler.look()
        for part in self._notes:
            part.note(look)

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            self.guarded_look()
