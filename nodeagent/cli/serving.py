"""`nodeagent serve`: settings, node and graph, under gunicorn until it is told to stop."""

from __future__ import annotations

from pathlib import Path

import structlog

from nodeagent import config as settings
from nodeagent import wiring
from nodeagent.adapters.launcher import HERE, Launcher, Outside
from nodeagent.adapters.news import News
from nodeagent.adapters.private_directory import check_private
from nodeagent.adapters.service_manager import take_service_manager
from nodeagent.adapters.sole import sole
from nodeagent.api.server import AgentServer, inherited_path
from nodeagent.cli.logs import configure_logging
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
    path = config_path or settings.DEFAULT_PATH
    config, complaints = settings.check(path)
    for complaint in complaints:
        log.warning("setting ignored", why=complaint)
    listen, state = _socket(socket or config.server.socket), state_dir or config.state.directory
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidField("state.directory", f"{state}: {error.strerror}") from None
    check_private(state)
    with sole(state):
        manager = take_service_manager()  # before gunicorn, which would say READY for a worker to come
        node = _node(simulate, state, Outside(launcher) if launcher else HERE)
        place = wiring.Place(node, listen, state, manager, News())
        given = {"server.socket": socket, "state.directory": state_dir}
        fixed = frozenset(key for key, said in given.items() if said is not None)
        _serve(config, place, wiring.Reload(path, config, place, fixed))


def _socket(wanted: Path) -> Path:
    """Where the agent listens: what systemd opened for it is open already."""
    opened = inherited_path()
    if opened is not None and opened != wanted:
        log.warning("nodeagent.socket listens elsewhere", there=str(opened), settings=str(wanted))
    return opened or wanted


def _node(simulate: str | None, state: Path, launcher: Launcher) -> wiring.Node:
    return wiring.simulated_node(simulate, state, launcher) if simulate else wiring.this_node(launcher)


def _serve(config: settings.Config, place: wiring.Place, reload: wiring.Reload) -> None:
    place.node.listen()
    first = wiring.serving(config, place)
    wiring.tidy()
    log.info("serving", socket=str(place.socket), machine=place.node.machine)
    AgentServer(first.make_app, first.settings, first.hooks, reload).run()
