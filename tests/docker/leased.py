"""Containers in leases on one host: how tests start them, and what must be true when they have ended."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.slurm.agent import ServedAgent
from tests.slurm.space import children

from .host import Host

ASK = ("--vram", "4G", "--cu", "25%")
ENDED = ("released", "failed")
FOREVER = ("sh", "-c", "sleep 600")


@dataclass(frozen=True)
class Container:
    """A container that was started in a lease, and that lease's id."""

    id: str
    lease: int


@dataclass(frozen=True)
class Leased:
    """Starts containers in leases."""

    host: Host
    agent: ServedAgent
    image: Callable[..., str]

    def words(self, *options: str, verb: str = "run", image: str = "busybox") -> tuple[str, ...]:
        """The words of a call up to the container's command, with a slice of a GPU and without a network."""
        client = self.host.kind.client
        return ("gpulease", client, verb, *ASK, "--network=none", *options, self.image(self.host, image))

    def run(self, command: tuple[str, ...], *options: str, **more: Any) -> Any:
        """Run a container to its end, in the foreground: a CompletedProcess."""
        image = more.pop("image", "busybox")
        return self.host.run(*self.words("--rm", *options, image=image), *command, **more)

    def start(self, *options: str, command: tuple[str, ...] = FOREVER, **more: Any) -> Container:
        """Start a container in the background."""
        return self.made("--detach", *options, command=command, **more)

    def made(self, *options: str, command: tuple[str, ...] = FOREVER, **more: Any) -> Container:
        """What a call makes that prints a container's id."""
        image, verb = more.pop("image", "busybox"), more.pop("verb", "run")
        done = self.host.run(*self.words(*options, verb=verb, image=image), *command, **more)
        assert done.returncode == 0, f"{done.stderr}\n{self.host.log()}"
        return self.container(done.stdout.strip())

    def container(self, name: str) -> Container:
        """A container by name or id, with its lease as the label says."""
        told = self.host.inspect(name)
        return Container(told["Id"], int(told["Config"]["Labels"]["gpulease.lease"]))

    def running(self) -> Container:
        """The one container that there is, as soon as it runs."""
        found = self.host.until(lambda: self.host.said("ps", "--quiet", "--no-trunc").split())
        assert len(found) == 1
        return self.container(found[0])

    def state(self, container: Container) -> str:
        """The lease's."""
        return str(self._lease(container)["state"])

    def bound(self, container: Container) -> None:
        """Wait until the lease is the container's."""
        self.host.until(lambda: (self._lease(container)["container"] or {}).get("id") == container.id)
        assert self.state(container) == "active"

    def released(self, container: Container) -> None:
        """Wait for the lease's end. It must be a proved one, and leave no cgroup and no file."""
        self.host.until(lambda: self.state(container) in ENDED)
        assert self.state(container) == "released", self._lease(container)
        left = self.agent.slice.glob(f"*-{container.lease}.slice")
        assert list(left) == []
        places = self.host.path("/run/nodeagent/containers"), self.host.path("/run/nodeagent/tickets")
        files = [path for place in places for path in place.glob("*/*")]
        assert [path for path in files if path.name == str(container.lease)] == []

    def signal_client(self, process: Any, number: int) -> None:
        """Send a signal to the client that `Host.start` started: what was the wrapper."""
        (client,) = children(process.pid)  # of nsenter
        os.kill(client, number)

    def _lease(self, container: Container) -> dict[str, Any]:
        return self.agent.call("GET", f"/v1/leases/{container.lease}")
