"""A container engine's API over its unix socket: docker's, which podman speaks, too (API 1.40, docker 19.03).

Each call has a connection of its own and two seconds: an engine that hangs holds up nobody. Whoever made the
socket is asked for his uid first: what stands at its path is believed only where root serves it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from nodeagent.adapters.systemcalls import outside_fault
from nodeagent.domain.container import Seen, is_id, is_name
from nodeagent.domain.errors import OutsideFault

SECONDS = 2.0
MOST_BYTES = 32 << 20  # of one answer: a few thousand containers
MOST_LINE = 1 << 20
_EVENTS = ("create", "start", "die", "destroy", "remove", "pause", "unpause", "rename")  # podman says remove


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """How an engine makes cgroups: driver ``systemd`` or ``cgroupfs``, version ``1`` or ``2``.

    *release* is the engine's own version, as ``26.1.5+dfsg1``; None: not told.
    """

    driver: str
    version: str
    release: str | None = None


@dataclass(frozen=True, slots=True)
class Daemon:
    """An engine's release, and the plugins that it asks before each call."""

    version: str
    authorization: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Running:
    """What an engine says of one container. *pid* is its first process, while it runs."""

    id: str
    status: str
    pid: int | None


class EngineSocket:
    """The engine that listens at *path*. Every call raises OutsideFault where it does not answer well."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def info(self) -> EngineInfo:
        told = self._object("GET", "/info")
        driver, version, release = map(told.get, ("CgroupDriver", "CgroupVersion", "ServerVersion"))
        if not isinstance(driver, str) or not isinstance(version, str | None):
            raise OutsideFault(self.path, "does not say how it makes cgroups")
        return EngineInfo(driver, version or "1", release if isinstance(release, str) else None)

    def daemon(self) -> Daemon:
        told = self._object("GET", "/info")
        version, plugins = told.get("ServerVersion"), told.get("Plugins")
        if not isinstance(version, str):
            raise OutsideFault(self.path, "does not say its version")
        named = plugins.get("Authorization") if isinstance(plugins, dict) else None
        return Daemon(version, tuple(str(name) for name in named) if isinstance(named, list) else ())

    def containers(self) -> tuple[Seen, ...]:
        """Every container, running or not."""
        told = self._json("GET", "/containers/json?all=1")
        if not isinstance(told, list):
            raise OutsideFault(self.path, "does not list its containers")
        return tuple(seen for one in told if (seen := _seen(one)) is not None)

    def running(self, container: str) -> Running | None:
        """What *container*, a whole id, is now; None: there is none such any more."""
        told = self._object("GET", f"/containers/{_checked(container)}/json", missing={})
        state = told.get("State")
        if told.get("Id") != container or not isinstance(state, dict):
            return None
        pid = state.get("Pid")
        return Running(container, str(state.get("Status")), pid if isinstance(pid, int) and pid > 1 else None)

    def stop(self, container: str, seconds: int) -> None:
        """Ask *container* to end, by the signal that its image names, and kill it after *seconds*.

        The engine goes on with that when nobody waits for its answer, so that is not waited for.
        """
        with contextlib.suppress(TimeoutError):
            self._call("POST", f"/containers/{_checked(container)}/stop?t={seconds:d}", seconds=0.5)

    def kill(self, container: str) -> None:
        self._call("POST", f"/containers/{_checked(container)}/kill")

    @contextlib.contextmanager
    def events(self) -> Iterator[Iterator[None]]:
        """Something happened to a container, for each item. Ends with the engine's end of the connection.

        What it says is not read: an event is a reason to look, never a fact.
        """
        wanted = json.dumps({"type": ["container"], "event": list(_EVENTS)})
        with self._connected(None) as connection:
            answer = self._ask(connection, "GET", f"/events?{urlencode({'filters': wanted})}")
            if answer.status != 200:
                raise OutsideFault(self.path, f"tells no events: HTTP {answer.status}")
            yield self._lines(answer)

    def _lines(self, answer: http.client.HTTPResponse) -> Iterator[None]:
        try:
            while answer.readline(MOST_LINE):
                yield None
        except (OSError, http.client.HTTPException, ValueError) as fault:
            raise OutsideFault(self.path, f"ended its events: {fault!r}") from None

    def _object(
        self, method: str, target: str, missing: Mapping[str, Any] | None = None
    ) -> Mapping[str, Any]:
        told = self._json(method, target, missing)
        if not isinstance(told, dict):
            raise OutsideFault(self.path, f"{target}: answers no object")
        return told

    def _json(self, method: str, target: str, missing: Any = None) -> Any:
        status, body = self._call(method, target)
        if status == 404 and missing is not None:
            return missing
        if status != 200:
            raise OutsideFault(self.path, f"{target}: HTTP {status}")
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as fault:
            raise OutsideFault(self.path, f"{target}: answers no JSON: {fault}") from None

    def _call(self, method: str, target: str, seconds: float = SECONDS) -> tuple[int, bytes]:
        """Status and body. Raises TimeoutError, too, where the answer does not come."""
        with self._connected(seconds) as connection:
            answer = self._ask(connection, method, target)
            try:
                body = answer.read(MOST_BYTES + 1)
            except (OSError, http.client.HTTPException) as fault:
                raise OutsideFault(self.path, f"{target}: was cut short: {fault!r}") from None
        if len(body) > MOST_BYTES:
            raise OutsideFault(self.path, f"{target}: answers more than {MOST_BYTES >> 20} MiB")
        return answer.status, body

    def _ask(
        self, connection: http.client.HTTPConnection, method: str, target: str
    ) -> http.client.HTTPResponse:
        try:
            connection.request(method, target, headers={"Host": "engine"})
            return connection.getresponse()
        except TimeoutError:
            raise
        except (OSError, http.client.HTTPException) as fault:
            raise OutsideFault(self.path, f"{target}: is not answered: {fault!r}") from None

    @contextlib.contextmanager
    def _connected(self, seconds: float | None) -> Iterator[http.client.HTTPConnection]:
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            connection.sock.settimeout(SECONDS)
            connection.sock.connect(str(self.path))
            _check_server(connection.sock, self.path)
            connection.sock.settimeout(seconds)
            yield connection
        except OSError as fault:
            if isinstance(fault, TimeoutError) and seconds is not None and seconds < SECONDS:
                raise
            raise outside_fault(
                self.path, fault, ENOENT="no engine listens here", ECONNREFUSED="no engine listens here"
            ) from None
        finally:
            connection.close()


def _check_server(connected: socket.socket, path: Path) -> None:
    told = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    uid = struct.unpack("3i", told)[1]
    if uid not in (0, os.geteuid()):
        raise OutsideFault(path, f"is served by uid {uid}, not by root")


def _checked(container: str) -> str:
    if not is_id(container):
        raise OutsideFault("container", f"{container!r} is no container's id")
    return container


def _seen(told: object) -> Seen | None:
    """One item of a list; None where it is none that we could speak of."""
    if not isinstance(told, dict) or not is_id(told.get("Id")):
        return None
    names, labels = told.get("Names"), told.get("Labels")
    named = tuple(bare for name in names or () if is_name(bare := str(name).removeprefix("/")))
    labelled = {str(key): str(value) for key, value in labels.items()} if isinstance(labels, dict) else {}
    made = told.get("Created")
    created = made if isinstance(made, int) else 0
    return Seen(told["Id"], named, str(told.get("State")).lower(), labelled, created)
