"""What the reconciler calls to show the service manager that it lives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from nodeagent.adapters.self_call import SelfCall
from nodeagent.adapters.service_manager import ServiceManager
from nodeagent.service.heartbeat import Heartbeat


def build_beat(manager: ServiceManager | None, socket: Path) -> Callable[[], None]:
    """A beat that tells *manager*, once the API at *socket* has answered; nothing where there is none."""
    if manager is None:
        return lambda: None
    call = SelfCall(socket)
    return Heartbeat(manager, call.poll, watchdog_seconds=manager.watchdog_seconds).beat
