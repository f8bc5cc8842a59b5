"""Builds what says whether anything is enforced."""

from __future__ import annotations

from collections.abc import Callable

from nodeagent import config as settings
from nodeagent.adapters.bypass_file import BypassFile
from nodeagent.domain.clock import Clock
from nodeagent.domain.lease import HolderKind
from nodeagent.domain.mode import Mode, Modes
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.enforcement import Enforcement
from nodeagent.wiring.containers import Dock


def build_enforcement(config: settings.Config, clock: Clock, ledger: Ledger, stem: str) -> Enforcement:
    """By the site's settings, and by the bypass of the agent instance *stem*."""
    return Enforcement(clock, ledger, modes_of(config), BypassFile(stem).read)


def modes_of(config: settings.Config) -> Modes:
    return Modes({kind: Mode(getattr(config.mode, kind)) for kind in HolderKind})


def foreign_stop(
    config: settings.Config, dock: Dock, ledger: Ledger, enforcement: Enforcement
) -> Callable[[int], str | None] | None:
    """What stops the container that a process without a lease is in; None where none is to be stopped."""
    if config.docker.on_foreign != "stop":
        return None
    containers = dock.foreign(ledger)

    def stop(pid: int) -> str | None:
        return None if enforcement.observed(HolderKind.DOCKER) else containers.stop(pid)

    return stop
