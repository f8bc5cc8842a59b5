"""A host whose dockerd asks the authorization plugin, and docker's calls as bytes on its socket."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodeagent.domain.docker_ticket import digest
from tests.slurm.space import ENVIRONMENT, ROOT, children

from .host import SECONDS, Host, running_host
from .kinds import DOCKER_SOCKET, Kind

PLUGIN = "/run/docker/plugins/nodeagent.sock"
TICKETS = "/run/nodeagent/tickets/gpulease"


@dataclass(frozen=True)
class Answer:
    """What dockerd answered; *body* is JSON where it can be read as such."""

    status: int
    body: Any

    @property
    def refused(self) -> bool:
        """Whether it was the plugin that refused, and said why."""
        return self.status == 403 and "authorization denied by plugin nodeagent: " in str(self.body)


@dataclass
class Guarded:
    """A host and the plugin that its dockerd asks."""

    host: Host
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the plugin and wait until it listens."""
        with (self.host.directory / "plugin.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.host.space.command(sys.executable, "-m", "nodeagent.cli.main", "docker-plugin"),
                env={**ENVIRONMENT, "PYTHONPATH": str(ROOT)},
                stderr=log,
            )
        self.host.until(self._listens)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End the plugin; its socket's file stays behind where it is killed."""
        assert self.process is not None
        for pid in children(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        self.process.wait(SECONDS)

    def said(self) -> str:
        """What the plugin wrote into its log."""
        return (self.host.directory / "plugin.log").read_text()

    def call(
        self, method: str, path: str, body: object = None, *headers: str, chunked: bool = False
    ) -> Answer:
        """One call as anybody who may talk to docker can write it; *headers* replace the Content-Type."""
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        kinds = headers or (() if body is None else ("Content-Type: application/json",))
        length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(raw)}"
        lines = [f"{method} {path} HTTP/1.1", "Host: docker", "Connection: close", *kinds, length]
        data = b"%x\r\n%s\r\n0\r\n\r\n" % (len(raw), raw) if chunked else raw
        return self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + data)

    def send(self, data: bytes) -> Answer:
        """Bytes to dockerd, and what comes back until it closes."""
        with socket.socket(socket.AF_UNIX) as own:
            own.settimeout(SECONDS)
            own.connect(str(self.host.path(DOCKER_SOCKET)))
            with contextlib.suppress(BrokenPipeError):  # it may answer before it has read all
                own.sendall(data)
            came = b""
            with contextlib.suppress(ConnectionResetError):
                while part := own.recv(1 << 16):
                    came += part
        head, _, rest = came.partition(b"\r\n\r\n")
        body = _unchunked(rest) if b"chunked" in head.lower() else rest
        try:
            return Answer(int(head.split()[1]), json.loads(body))
        except ValueError:
            return Answer(int(head.split()[1]), body.decode(errors="replace"))

    def create(self, host: dict[str, Any], **beside: Any) -> Answer:
        """A create with this HostConfig."""
        return self.call("POST", "/containers/create", {**CONTAINER, **beside, "HostConfig": host})

    def lend(self, token: str, **record: Any) -> Path:
        """A lease's ticket, as the agent writes it; its file."""
        directory = self.host.path(TICKETS)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = directory / digest(token)
        empty = {"lease": 7, "cgroup_parents": [], "devices": [], "mounts": [], "groups": []}
        file.write_text(json.dumps({**empty, **record}))
        return file

    def _listens(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self.said()
        with socket.socket(socket.AF_UNIX) as own:
            return own.connect_ex(str(self.host.path(PLUGIN))) == 0


CONTAINER = {"Image": "busybox", "Cmd": ["true"], "NetworkDisabled": True}


def _unchunked(rest: bytes) -> bytes:
    whole = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size or b"0", 16)
        whole, rest = whole + rest[:length], rest[length + 2 :]
        if not length:
            break
    return whole


@contextlib.contextmanager
def guarded_host(kind: Kind, gpus: int = 0) -> Iterator[Guarded]:
    """A host of *kind* with the plugin, and dockerd started anew so that it asks it."""
    with running_host(kind, gpus) as host:
        host.path(PLUGIN).parent.mkdir(parents=True, exist_ok=True)
        guarded = Guarded(host)
        guarded.start()
        host.restart_engine(**{"authorization-plugins": ["nodeagent"]})
        try:
            yield guarded
        finally:
            host.remove_containers()
            host.restart_engine()
            guarded.stop()
