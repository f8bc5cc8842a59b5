"""The node that `nodeagent doctor` looks at, and whom it asks."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from nodeagent import config as settings
from nodeagent.adapters.uevents import UeventSocket
from nodeagent.cli.asking import ask
from nodeagent.cli.health_check import look as health_of
from nodeagent.cli.slurming import examine as slurm_findings
from nodeagent.doctor import Scene, look
from nodeagent.domain.doctor import Finding
from nodeagent.domain.errors import OutsideFault

_SECONDS = 3.0  # for the agent to answer


def findings_of(config_path: Path | None, *, socket: Path | None, state_dir: Path | None) -> list[Finding]:
    """Every check's finding on this node."""
    # Adapters log what they could not read: never among the findings, which a program may read.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    path = config_path or settings.DEFAULT_PATH
    config, complaints = settings.check(path)
    config = config.overridden(socket=socket, state_dir=state_dir)
    asked = config.server.socket
    health = health_of(asked)

    def told(target: str) -> Any:
        return ask(asked, "GET", target, timeout=_SECONDS)

    return look(
        Scene(
            config=config,
            settings_path=path,
            complaints=complaints,
            ask=told,
            health=(health.line, int(health.state)),
            slurm=partial(slurm_findings, config_path, simulate=None, node=None, socket=asked),
            events=why_unheard,
        )
    )


def why_unheard() -> str | None:
    """Why the kernel's events do not reach this process; None: they do."""
    source = UeventSocket()
    try:
        source.open()
    except OutsideFault as fault:
        return str(fault)
    source.close()
    return None
