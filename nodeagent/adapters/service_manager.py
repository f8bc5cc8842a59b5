"""What systemd wants to hear of a service: sd_notify(3) and sd_watchdog_enabled(3), without its library."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import MutableMapping
from dataclasses import dataclass

_MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class ServiceManager:
    """Takes messages at *address*; without *watchdog_seconds* it waits for no sign of life."""

    address: str
    watchdog_seconds: float | None = None

    def tell(self, *lines: str) -> bool:
        """Send ``NAME=value`` lines as one message; whether it was taken. Never waits and never raises:
        a service manager that is busy or gone is no reason for an agent to stop."""
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender,
        ):
            sender.connect(self.address)
            sender.send("\n".join(lines).encode())
            return True
        return False


def take_service_manager(environment: MutableMapping[str, str] = os.environ) -> ServiceManager | None:
    """Who started this process and listens, or None.

    Its variables are taken out of *environment*: gunicorn would say READY before there is a worker, and a
    program that the agent starts would speak for it.
    """
    address = environment.pop("NOTIFY_SOCKET", "")
    period = environment.pop("WATCHDOG_USEC", "")
    of_pid = environment.pop("WATCHDOG_PID", "")
    if address[:1] not in ("/", "@"):  # vsock: of a virtual machine's own systemd
        return None
    watched = period.isdecimal() and int(period) > 0 and of_pid in ("", str(os.getpid()))
    path = f"\0{address[1:]}" if address.startswith("@") else address
    return ServiceManager(path, int(period) / _MICROSECONDS if watched else None)
