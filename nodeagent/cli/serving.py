"""`nodeagent serve`: settings, node and graph, under gunicorn until it is told to stop."""

from __future__ import annotations

import gc
from pathlib import Path

import structlog

from nodeagent import config as settings
from nodeagent import wiring
from nodeagent.adapters.launcher import HERE, Launcher, Outside
from nodeagent.adapters.private_directory import check_private
from nodeagent.adapters.service_manager import take_service_manager
from nodeagent.adapters.sole import sole
from nodeagent.api.server import AgentServer, Hooks, ServerSettings, inherited_path
from nodeagent.cli.logs import configure_logging
from nodeagent.domain.endpoint import Endpoint
from nodeagent.domain.errors import InvalidField

log = structlog.get_logger()


def serve(
    config_path: Path | None,
    *,
    simulate: str | None,
    socket: Path | None,
    state_dir: Path | None,
    launcher: Path | None = None,
) -> None:
    """Serve in the foreground. Wrong settings are dropped with a warning: one error must not stop a fleet."""
    configure_logging()
    config, complaints = settings.check(config_path or settings.DEFAULT_PATH)
    for complaint in complaints:
        log.warning("setting ignored", why=complaint)
    config = config.overridden(socket=_socket(socket or config.server.socket), state_dir=state_dir)
    state = config.state.directory
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidField("state.directory", f"{state}: {error.strerror}") from None
    check_private(state)
    with sole(state):
        _serve(config, simulate, Outside(launcher) if launcher else HERE)


def _socket(wanted: Path) -> Path:
    """Where the agent listens: what systemd opened for it is open already."""
    opened = inherited_path()
    if opened is not None and opened != wanted:
        log.warning("nodeagent.socket listens elsewhere", there=str(opened), settings=str(wanted))
    return opened or wanted


def server_settings(config: settings.Config, web: Endpoint | None) -> ServerSettings:
    """How the API is served; *web*: where it can be read by TCP as well."""
    return ServerSettings(
        socket=config.server.socket,
        threads=config.server.threads,
        classify=wiring.classifier(config),
        web=web,
    )


def _serve(config: settings.Config, simulate: str | None, launcher: Launcher) -> None:
    manager = take_service_manager()  # before gunicorn, which would say READY for a worker to come
    if simulate:
        node = wiring.simulated_node(simulate, config.state.directory, launcher)
    else:
        node = wiring.this_node(launcher)
    built = wiring.build(config, node, manager=manager)
    server = server_settings(config, built.web)
    gc.freeze()  # what is loaded by now stays: no collection need walk through it, while a grant waits
    log.info("serving", socket=str(config.server.socket), machine=node.machine)
    AgentServer(lambda: built.app, server, Hooks(start=built.start, stop=built.stop)).run()
