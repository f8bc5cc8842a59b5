"""Files beside the database: what the agent knows for as long as the node runs, kept over its restarts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import structlog

from nodeagent.domain.clock import Clock
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.records import Json
from nodeagent.ledger.files import write_durably

log = structlog.get_logger()
T = TypeVar("T")


class BootFile(Generic[T]):
    """JSON: ``{"boot_id": …, "entries": {name: …}}``. *parse* makes an entry of its value, or raises."""

    def __init__(self, path: Path, clock: Clock, parse: Callable[[Any], T]) -> None:
        self._path = path
        self._clock = clock
        self._parse = parse

    def read(self) -> dict[str, T]:
        """What was kept in this boot. A file that cannot be read is as good as none, and the log says why."""
        try:
            told = json.loads(self._path.read_bytes())
            if told["boot_id"] != self._clock.boot_id:
                return {}
            return {str(name): self._parse(value) for name, value in told["entries"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, AttributeError, KeyError, TypeError, ValueError, RecursionError) as fault:
            log.error("what was kept is lost", path=str(self._path), why=repr(fault))
            return {}

    def keep(self, entries: Mapping[str, Json]) -> None:
        """Replace what was kept. A disk that takes nothing is logged: it costs a later restart only."""
        try:
            self.put(entries)
        except OutsideFault as fault:
            log.error("not kept over a restart", path=str(self._path), why=fault.why)

    def put(self, entries: Mapping[str, Json]) -> None:
        """Replace what was kept. Raises OutsideFault where the disk takes nothing."""
        try:
            write_durably(self._path, json.dumps({"boot_id": self._clock.boot_id, "entries": entries}))
        except OSError as fault:
            raise OutsideFault(self._path, str(fault)) from fault
