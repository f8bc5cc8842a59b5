"""Builds what leases of containers need: the engines, their files, their tickets."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from nodeagent import config as settings
from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.container_files import ContainerFiles
from nodeagent.adapters.engine import EngineSocket
from nodeagent.adapters.tickets import Tickets
from nodeagent.domain.clock import Clock
from nodeagent.domain.container import Engine
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.contained import ContainerDoor, ContainerEffect
from nodeagent.service.container_view import ContainerViews
from nodeagent.service.engines import Engines
from nodeagent.wiring.state import TICKET_KEY

_CGROUP2_ALONE = Path("/sys/fs/cgroup")  # where its mount is on nodes without version 1
_STOP_MARGIN = 5  # seconds that an engine waits beyond the agent's own grace
_LEAST_STOP = 10  # docker's own


@dataclass(frozen=True, slots=True)
class Containers:
    """The outside things of containers' leases."""

    engines: Engines
    files: ContainerFiles
    tickets: Tickets
    root: Path  # below which the node's device files are
    stop_seconds: int

    def door(self) -> ContainerDoor:
        return ContainerDoor(self.files.unavailable)

    def effect(self) -> ContainerEffect:
        return ContainerEffect(self.files, self.tickets, self.engines, self.root)

    def views(self, ledger: Ledger) -> ContainerViews:
        return ContainerViews(ledger, self.tickets, self.stop_seconds)


def build_containers(
    config: settings.Config, clock: Clock, tree: CgroupTree | None, stem: str, root: Path, *, systemd: bool
) -> Containers:
    """Where they are turned off, no lease is a container's; it may be a CDI device all the same."""
    docker = config.docker
    sockets = {Engine.DOCKER: docker.socket, Engine.PODMAN: docker.podman_socket}
    sources = {engine: EngineSocket(path) for engine, path in sockets.items()} if docker.enabled else {}
    unified = tree is not None and tree.mount == _CGROUP2_ALONE
    grace = config.release.interrupt_seconds + config.release.grace_seconds
    return Containers(
        Engines(sources, clock, unified=unified, systemd=systemd),
        ContainerFiles(stem),
        Tickets(config.state.directory / TICKET_KEY),
        root,
        max(_LEAST_STOP, math.ceil(grace) + _STOP_MARGIN),
    )
