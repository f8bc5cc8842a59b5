"""What is served, from one reading of the settings; and the next reading, when SIGHUP asks for it."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from nodeagent import config as settings
from nodeagent.adapters.news import News
from nodeagent.adapters.service_manager import ServiceManager
from nodeagent.api.server import Hooks, ServerSettings, Serving
from nodeagent.domain.endpoint import Endpoint
from nodeagent.domain.errors import InvalidField
from nodeagent.wiring.callers import classifier
from nodeagent.wiring.graph import build
from nodeagent.wiring.node import Node

log = structlog.get_logger()

LONGEST_REASON = 4096  # characters that the worker is told: a file may have any number of mistakes


@dataclass(frozen=True, slots=True)
class Place:
    """What an agent is on, and what its start has fixed."""

    node: Node
    socket: Path
    state: Path
    manager: ServiceManager | None
    news: News


def serving(config: settings.Config, place: Place) -> Serving:
    """The graph of *config*, and how it is served."""
    fixed = config.overridden(socket=place.socket, state_dir=place.state)
    built = build(fixed, place.node, manager=place.manager, news=place.news)
    hooks = Hooks(start=built.start, leave=built.leave, stop=built.stop)
    return Serving(lambda: built.app, server_settings(fixed, built.web), hooks)


def server_settings(config: settings.Config, web: Endpoint | None) -> ServerSettings:
    """How the API is served; *web*: where it can be read by TCP as well."""
    return ServerSettings(
        socket=config.server.socket,
        threads=config.server.threads,
        classify=classifier(config),
        web=web,
    )


class Reload:
    """Reads the settings again, strictly, and tells log, events and service manager what came of it.

    *config* is what the file said at the start. *given*: keys that the command line said instead, for ever.
    """

    def __init__(self, path: Path, config: settings.Config, place: Place, given: frozenset[str]) -> None:
        self._path = path
        self._place = place
        self._at_start = self._now = self._next = config
        self._given = given

    def begin(self) -> None:
        # systemd orders the two messages by the time (sd_notify(3)); a reload is a sign of life, too.
        self._manage("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}", "WATCHDOG=1")
        log.info("reloading", path=str(self._path))

    def make(self) -> Serving:
        """Raises InvalidField with every complaint: what a start would do without, a reload refuses."""
        self._next, complaints = settings.check(self._path)
        if complaints:
            raise InvalidField(str(self._path), "; ".join(complaints))
        return serving(self._next, self._place)

    def done(self) -> None:
        changed = set(settings.changed(self._now, self._next)) - self._given
        told = {"path": str(self._path), "changed": sorted(changed), "restart": self._restart()}
        self._now = self._next
        log.info("reloaded", **told)
        self._end(told)
        tidy()

    def failed(self, why: str) -> None:
        log.error("not reloaded: the settings of before hold on", why=why)
        self._end({"path": str(self._path), "reason": why[:LONGEST_REASON]})

    def _restart(self) -> list[str]:
        """The keys that wait for a start, also those that an earlier reload left waiting."""
        since_start = set(settings.changed(self._at_start, self._next)) - self._given
        return [key for key in settings.AT_START if key in since_start]

    def _end(self, told: Mapping[str, Any]) -> None:
        self._place.news.tell(told)
        self._manage("READY=1", "WATCHDOG=1")

    def _manage(self, *lines: str) -> None:
        if self._place.manager is not None:
            self._place.manager.tell(*lines)


def tidy() -> None:
    """Collect what is left of a graph; freeze the rest, so that no grant waits while it is walked through."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
