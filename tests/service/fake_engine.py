"""An engine as docker's API describes one, with its traps: down, slow to tell, forgetful, full of copies."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

from nodeagent.adapters.engine import EngineInfo, Running
from nodeagent.domain.container import Seen
from nodeagent.domain.errors import OutsideFault


@dataclass
class FakeEngine:
    """Containers by id. *down*: it does not answer. *stubborn*: what it stops goes on until it is killed."""

    driver: str = "cgroupfs"
    version: str = "2"
    down: bool = False
    stubborn: bool = False
    listed: dict[str, Seen] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)  # of first processes
    calls: list[tuple[str, str]] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def create(self, labels: Mapping[str, str], *, name: str = "web", status: str = "created") -> str:
        """The id of a new container; every one has its number for the second in which it was made."""
        number = next(self.numbers)
        container = f"{number:064x}"
        self.listed[container] = Seen(container, (name,), status, dict(labels), number)
        return container

    def be(self, container: str, status: str) -> None:
        old = self.listed[container]
        self.listed[container] = Seen(old.id, old.names, status, old.labels, old.created)

    def remove(self, container: str) -> None:
        del self.listed[container]

    def info(self) -> EngineInfo:
        self._answer()
        return EngineInfo(self.driver, self.version)

    def containers(self) -> tuple[Seen, ...]:
        self._answer()
        return tuple(self.listed.values())

    def running(self, container: str) -> Running | None:
        self._answer()
        seen = self.listed.get(container)
        pid = self.pids.get(container) if seen and seen.running else None
        return None if seen is None else Running(container, seen.status, pid)

    def stop(self, container: str, seconds: int) -> None:
        self._answer()
        self.calls.append(("stop", container))
        if not self.stubborn:
            self.be(container, "exited")

    def kill(self, container: str) -> None:
        self._answer()
        self.calls.append(("kill", container))
        self.be(container, "exited")

    def _answer(self) -> None:
        if self.down:
            raise OutsideFault("/run/docker.sock", "no engine listens here (ECONNREFUSED)")
