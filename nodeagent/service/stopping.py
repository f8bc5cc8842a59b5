"""The end of the containers of a lease, by their engine: asked first, as their image wants it, then killed.

Never for a name or a label: a container is a lease's that was bound to it, or has its note among its mounts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from nodeagent.adapters.container_processes import LeaseMounts, Place, container_of
from nodeagent.domain.container import Container, Engine, Life, Seen, life_of
from nodeagent.domain.errors import OutsideFault
from nodeagent.service.effects import Evidence, Pending
from nodeagent.service.engines import Engines, Source
from nodeagent.service.spared import SPARED

MARGIN_SECONDS = 2.0  # for the engine's own kill to take
ASK_SECONDS = 0.2  # between two questions to an engine
SWEPT: Evidence = {"containers": "swept with the lease's cgroup"}


@dataclass(slots=True)
class _Asked:
    until: float  # when a container is killed
    next: float  # when its engine is asked again
    said: Pending


class Stopping:
    """*seconds* is the time between asking and killing. An agent that was started anew asks once more."""

    def __init__(
        self,
        engines: Engines,
        mounts: LeaseMounts,
        seconds: float,
        *,
        stops: bool,
        spared: Callable[[], bool] = lambda: False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engines = engines
        self._mounts = mounts
        self._seconds = seconds
        self._stops = stops  # by docker.on_ended
        self._spared = spared  # whether nobody is to be ended now
        self._now = now
        self._asked: dict[str, _Asked] = {}  # by container
        self._strays: dict[Place, _Asked] = {}

    def advance(
        self, lease: int, held: Container | None, *, in_cgroup: bool, guest: int | None = None
    ) -> Evidence | Pending:
        """Go on ending what runs in containers of *lease*, or one *guest* of it; evidence once nothing does.

        *in_cgroup*: they lie in the lease's own cgroup, which is swept after this in any case. A guest's is
        ended by its engine even so: in a job's cgroup nobody is signalled while Slurm is in there.
        """
        if held is not None and held.id is not None:
            waits = self._end(held.engine, held.id, in_cgroup=in_cgroup)
            if waits is not None:
                return waits
        if in_cgroup and guest is None:
            return SWEPT
        return self.end_strays(lease, guest, in_cgroup=in_cgroup)

    def end_strays(
        self, lease: int, guest: int | None = None, *, in_cgroup: bool = False
    ) -> Evidence | Pending:
        """End containers that were given the lease by a device's name, or that no engine told of."""
        whose, now = (lease, guest), self._now()
        known = self._strays.get(whose)
        if known is not None and now < known.next:
            return known.said
        places = self._mounts.places()
        left = [pid for pid, at in places.items() if at == whose or (guest is None and at[0] == lease)]
        if not left:
            self._strays.pop(whose, None)
            return {"containers": "none runs"}
        asked = False
        for container in sorted({one for pid in left if (one := container_of(pid)) is not None}):
            found = self._engines.first_process(container, left)
            if found is not None:
                asked = True
                self._end(found[1], container, in_cgroup=False)
        if in_cgroup and not asked:
            self._strays.pop(whose, None)
            return SWEPT
        said = Pending(
            f"processes {', '.join(map(str, left[:8]))} run in containers of the lease", alive=True
        )
        self._strays[whose] = _Asked(now, now + ASK_SECONDS, said)
        return said

    def _end(self, engine: Engine, container: str, *, in_cgroup: bool) -> Pending | None:
        """What is waited for; None: it runs no more, or is not for the engine to end."""
        source, asked, now = self._engines.source(engine), self._asked.get(container), self._now()
        if source is None or not self._stops:
            return None
        if asked is not None and now < asked.next:
            return asked.said
        try:
            running = source.running(container)
            seen = None if running is None else Seen(container, (), running.status, {})
            if life_of(seen, restarts=True) is not Life.ALIVE:
                self._asked.pop(container, None)
                return None
            if self._spared():
                return Pending(f"container {container[:12]}: {SPARED}", patient=True, alive=True)
            said = self._press(source, container, asked, now)
        except OutsideFault as fault:
            return None if in_cgroup else Pending(f"{engine} does not answer: {fault}", alive=True)
        until = now + self._seconds + MARGIN_SECONDS if asked is None else asked.until
        self._asked[container] = _Asked(until, now + ASK_SECONDS, said)
        return said

    def _press(self, source: Source, container: str, asked: _Asked | None, now: float) -> Pending:
        if asked is None:
            source.stop(container, round(self._seconds))
        elif now >= asked.until:
            source.kill(container)
            return Pending(f"container {container[:12]} was killed and is not gone yet", alive=True)
        return Pending(f"container {container[:12]}: asked to end by its engine", patient=True, alive=True)
