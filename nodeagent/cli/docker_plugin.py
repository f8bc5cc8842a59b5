"""`nodeagent docker-plugin`: a process of its own, small, and without anything of the agent's."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path

from nodeagent.adapters.docker_socket import Server, listening
from nodeagent.adapters.docker_tickets import Tickets
from nodeagent.adapters.docker_trees import trees
from nodeagent.domain.errors import OutsideFault
from nodeagent.service.docker_plugin import DockerPlugin

DAEMON = Path("/etc/docker/daemon.json")


def run(
    socket: Path, tickets: Path, *, keep: tuple[str, ...], opened: tuple[str, ...], buildkit: bool
) -> None:
    """Serve docker until SIGTERM; calls under way are answered first."""
    plugin = DockerPlugin(Tickets(tickets), lambda: trees(keep, opened), buildkit=buildkit)
    with Server(listening(socket), plugin) as server:

        def stop(_signal: int, _frame: object) -> None:
            # Not from here: shutdown waits for the loop that this interrupts.
            threading.Thread(target=server.shutdown).start()

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        server.serve_forever()


def in_use(daemon: Path, name: str) -> bool:
    """Whether dockerd's settings name this plugin: without it dockerd refuses every call.

    Raises:
        OutsideFault: the settings cannot be read, so nobody knows.
    """
    try:
        settings = json.loads(daemon.read_bytes())
        return any(Path(plugin).stem == name for plugin in settings.get("authorization-plugins", ()))
    except FileNotFoundError:
        return False
    except (OSError, ValueError, AttributeError, TypeError) as wrong:
        raise OutsideFault(daemon, f"cannot tell whether docker uses the plugin: {wrong}") from wrong
