"""The node's container engines: how each makes cgroups, and which containers it has.

An engine is only looked at while a lease has to do with it: to connect to podman's socket starts podman.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from nodeagent.adapters.container_processes import in_container_of
from nodeagent.adapters.engine import EngineInfo, Running
from nodeagent.domain import seccomp
from nodeagent.domain.clock import SECOND_NS, Clock
from nodeagent.domain.container import Container, Engine, Life, Seen, cgroup_parent, life_of
from nodeagent.domain.errors import OutsideFault

log = structlog.get_logger()
PATIENCE_NS = 2 * SECOND_NS
RESTART_NS = 15 * SECOND_NS


class Source(Protocol):
    """An engine's API: see `adapters.engine`."""

    def info(self) -> EngineInfo: ...

    def containers(self) -> tuple[Seen, ...]: ...

    def running(self, container: str) -> Running | None: ...

    def stop(self, container: str, seconds: int) -> None: ...

    def kill(self, container: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Sight:
    """The containers that an engine had, by id, when it was asked at *at_ns* of boot time."""

    at_ns: int
    containers: Mapping[str, Seen] = field(default_factory=dict)


class Engines:
    """What is known of the engines. *unified*: the node has cgroups of version 2 alone; *systemd* runs it."""

    def __init__(
        self, sources: Mapping[Engine, Source], clock: Clock, *, unified: bool, systemd: bool
    ) -> None:
        self._sources = dict(sources)
        self._clock = clock
        # What most engines do on such a node: for one that does not answer now, or was never asked.
        self._likely = EngineInfo("systemd" if systemd else "cgroupfs", "2" if unified else "1")
        self._infos: dict[Engine, EngineInfo] = {}
        self._sights: dict[Engine, Sight | None] = {}
        self._ended_ns: dict[str, int] = {}  # since when a container that restarts is seen to have ended
        self._failed_ns: dict[Engine, int] = {}  # when it last did not answer
        self._lock = threading.Lock()

    def ask(self, engine: Engine) -> None:
        """Learn how *engine* makes cgroups, once. Not inside a transaction: it may take two seconds."""
        source = self._sources.get(engine)
        if source is None or engine in self._infos:
            return
        try:
            self._infos[engine] = source.info()
        except OutsideFault as fault:
            log.warning("a container engine does not say how it makes cgroups", engine=engine, why=str(fault))

    def elsewhere(self, held: Container) -> bool:
        """Whether its engine keeps a container in other cgroups than the leases', which are of version 2."""
        return self._info(held.engine).version != "2"

    def parent(self, engine: Engine, path: str, *, slices: bool = True) -> str | None:
        info = self._info(engine)
        return cgroup_parent(engine, info.driver, info.version, path, slices=slices)

    def no_listener(self, engine: Engine) -> str | None:
        """Why *engine* cannot hand its containers' system calls to a supervisor, or None."""
        return seccomp.why_not(engine, self._info(engine).release)

    def look(self, engine: Engine) -> Sight | None:
        """Ask *engine* for its containers now; None: it does not answer."""
        source, at_ns = self._sources.get(engine), self._clock.boot_ns()
        sight = None
        if source is not None:
            try:
                sight = Sight(at_ns, {one.id: one for one in source.containers()})
            except OutsideFault as fault:
                self._note_fault(engine, fault)
        with self._lock:
            self._sights[engine] = sight
            if sight is None:
                self._failed_ns[engine] = at_ns
            else:
                self._failed_ns.pop(engine, None)
        return sight

    def look_again(self, engine: Engine) -> Sight | None:
        """As `look`, but not at once after one that was not answered: it may take two seconds."""
        with self._lock:
            failed_ns = self._failed_ns.get(engine)
        if failed_ns is not None and self._clock.boot_ns() - failed_ns < PATIENCE_NS:
            return None
        return self.look(engine)

    def source(self, engine: Engine) -> Source | None:
        """Its API; None: it has none, or is not looked at here."""
        return self._sources.get(engine)

    def first_process(self, container: str, pids: Iterable[int]) -> tuple[Source, Engine, int] | None:
        """Whose *container* that is in which one of *pids* provably is, and its first process.

        Whoever makes a cgroup chooses its name, a user or a container's root too. So the first process, as
        the engine itself knows it, must be in that very cgroup.
        """
        for engine, source in self._sources.items():
            try:
                running = source.running(container)
            except OutsideFault:
                continue
            first = None if running is None else running.pid
            if first is not None and any(in_container_of(pid, first, container) for pid in pids):
                return source, engine, first
        return None

    def sight(self, engine: Engine) -> Sight | None:
        """The last look at *engine*; None where it did not answer then, or was never looked at."""
        with self._lock:
            return self._sights.get(engine)

    def life(self, held: Container) -> Life:
        """Of the container that is bound to a lease, as it was at the last look."""
        sight = self.sight(held.engine)
        if sight is None or held.id is None:
            return Life.UNKNOWN
        seen = sight.containers.get(held.id)
        life = life_of(seen, restarts=held.restarts)
        if life is Life.ENDED and held.restarts and seen is not None:
            return life if self._stays_ended(held.id) else Life.ALIVE
        with self._lock:
            self._ended_ns.pop(held.id, None)
        return life

    def _stays_ended(self, container: str) -> bool:
        """Whether its engine has had the time to start it again, as after its own restart."""
        now = self._clock.boot_ns()
        with self._lock:
            return now - self._ended_ns.setdefault(container, now) >= RESTART_NS

    def _info(self, engine: Engine) -> EngineInfo:
        return self._infos.get(engine, self._likely)

    def _note_fault(self, engine: Engine, fault: OutsideFault) -> None:
        if self.sight(engine) is not None:
            log.warning("a container engine does not answer", engine=engine, why=str(fault))
