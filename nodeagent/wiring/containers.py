"""Builds what leases of containers need: the engines and their watches, their files, their tickets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nodeagent import config as settings
from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.container_files import NOTES, ContainerFiles
from nodeagent.adapters.container_processes import LeaseMounts
from nodeagent.adapters.docker_tickets import TICKETS
from nodeagent.adapters.engine import EngineSocket
from nodeagent.adapters.hook_files import HookFiles
from nodeagent.adapters.tickets import Tickets
from nodeagent.domain.clock import Clock
from nodeagent.domain.container import Container, Engine
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.admission import Admission
from nodeagent.service.contained import ContainerDoor, ContainerEffect
from nodeagent.service.container_view import ContainerViews
from nodeagent.service.engine_watch import EngineWatch
from nodeagent.service.engines import Engines
from nodeagent.service.foreign_containers import ForeignContainers
from nodeagent.service.guest_effect import GuestEffect
from nodeagent.service.stopping import Stopping
from nodeagent.wiring.state import TICKET_KEY

_CGROUP2_ALONE = Path("/sys/fs/cgroup")  # where its mount is on nodes without version 1
_STOP_MARGIN = 5  # seconds that an engine waits beyond the agent's own grace
_LEAST_STOP = 10  # docker's own


@dataclass(frozen=True, slots=True)
class Dock:
    """The outside things of containers' leases. *root* is what the node's device files are below."""

    engines: Engines
    sockets: Mapping[Engine, EngineSocket]
    files: ContainerFiles
    tickets: Tickets
    mounts: LeaseMounts
    root: Path
    grace_seconds: float = 5.0
    stops: bool = True  # the containers of leases that are over
    spared: Callable[[], bool] = lambda: False  # whether none is to be stopped now

    def door(self) -> ContainerDoor:
        return ContainerDoor(self.files.unavailable)

    def effect(self, ledger: Ledger) -> ContainerEffect:
        def bound(lease: int) -> Container | None:
            found = ledger.lease(lease)
            return None if found is None else found.anchor.container

        return ContainerEffect(self.admission(), self.engines, self.stopping(), bound)

    def guest_effect(self, hook: HookFiles) -> GuestEffect:
        return GuestEffect(self.admission(), hook, self.stopping())

    def admission(self) -> Admission:
        return Admission(self.files, self.tickets, self.root)

    def stopping(self) -> Stopping:
        return Stopping(self.engines, self.mounts, self.grace_seconds, stops=self.stops, spared=self.spared)

    def views(self, ledger: Ledger) -> ContainerViews:
        seconds = max(_LEAST_STOP, math.ceil(self.grace_seconds) + _STOP_MARGIN)
        return ContainerViews(ledger, self.tickets, seconds)

    def foreign(self, ledger: Ledger) -> ForeignContainers:
        return ForeignContainers(ledger, self.engines, self.mounts, self.grace_seconds)

    def watches(self, announce: Callable[[], None]) -> dict[Engine, EngineWatch]:
        return {
            engine: EngineWatch(engine, socket, self.engines, announce)
            for engine, socket in self.sockets.items()
        }


def build_dock(
    config: settings.Config,
    clock: Clock,
    tree: CgroupTree | None,
    stem: str,
    root: Path,
    *,
    systemd: bool,
    spared: Callable[[], bool],
) -> Dock:
    """Where they are turned off, no lease is a container's; it may be a CDI device all the same."""
    docker = config.docker
    paths = {Engine.DOCKER: docker.socket, Engine.PODMAN: docker.podman_socket} if docker.enabled else {}
    sockets = {engine: EngineSocket(path) for engine, path in paths.items()}
    unified = tree is not None and tree.mount == _CGROUP2_ALONE
    return Dock(
        Engines(sockets, clock, unified=unified, systemd=systemd),
        sockets,
        ContainerFiles(stem, notes=NOTES, tickets=TICKETS),
        Tickets(config.state.directory / TICKET_KEY),
        LeaseMounts(NOTES / stem),
        root,
        config.release.interrupt_seconds + config.release.grace_seconds,
        docker.on_ended == "stop",
        spared,
    )
