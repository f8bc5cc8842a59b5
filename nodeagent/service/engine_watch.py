"""Keeps what is known of one engine's containers up to date, and wakes who acts on it.

An event only says that it is time to look. Those that are lost cost one period; an engine that is down is
asked less and less often.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import structlog

from nodeagent.domain.container import Engine
from nodeagent.domain.errors import OutsideFault
from nodeagent.service.engines import Engines

log = structlog.get_logger()


class Telling(Protocol):
    """An engine that says when something happened: see `adapters.engine`."""

    def events(self) -> AbstractContextManager[Iterator[None]]: ...


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds: between two looks when nothing happens, at most where the engine does not answer, at least."""

    look: float = 2.0
    longest: float = 30.0
    least: float = 0.1


class EngineWatch:
    """Two threads, which do something only while the engine is *wanted*."""

    def __init__(
        self,
        engine: Engine,
        source: Telling,
        engines: Engines,
        announce: Callable[[], None],
        pace: Pace = Pace(),
    ) -> None:
        self._engine = engine
        self._source = source
        self._engines = engines
        self._announce = announce
        self._pace = pace
        self._wanted = threading.Event()
        self._stirred = threading.Event()
        self._stopped = threading.Event()

    def want(self, wanted: bool) -> None:
        """Whether some lease has to do with the engine now."""
        if wanted and not self._wanted.is_set():
            self._wanted.set()
            self._stirred.set()
        elif not wanted:
            self._wanted.clear()

    def start(self) -> None:
        for run in (self._look_on, self._listen_on):
            threading.Thread(target=run, name=f"{self._engine} {run.__name__}", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        self._wanted.set()
        self._stirred.set()

    def look(self) -> bool:
        """Look once, and announce what has changed; whether the engine answered."""
        before, now = self._engines.sight(self._engine), self._engines.look(self._engine)
        if (before and before.containers) != (now and now.containers):
            self._announce()
        return now is not None

    def listen(self) -> None:
        """Stir with each event, until the engine ends that. Raises OutsideFault where it tells none."""
        with self._source.events() as events:
            self._stirred.set()
            for _ in events:
                if not self._wanted.is_set() or self._stopped.is_set():
                    return
                self._stirred.set()

    def _look_on(self) -> None:
        pause = self._pace.look
        while not self._stopped.is_set():
            self._wanted.wait()
            self._stirred.wait(pause)
            self._stirred.clear()
            answered = self._guarded(self.look)
            pause = self._pace.look if answered else min(self._pace.longest, pause * 2)
            self._stopped.wait(self._pace.least)

    def _listen_on(self) -> None:
        pause = self._pace.look
        while not self._stopped.is_set():
            self._wanted.wait()
            began = self._guarded(self._listened)
            pause = self._pace.look if began else min(self._pace.longest, pause * 2)
            self._stopped.wait(pause)

    def _listened(self) -> bool:
        with contextlib.suppress(OutsideFault):
            self.listen()
            return True
        return False

    def _guarded(self, step: Callable[[], bool]) -> bool:
        """Without these threads no lease of a container would end by its end."""
        try:
            return step()
        except Exception:
            log.exception("a look at a container engine failed", engine=self._engine)
            return False
