"""The agent of one node, as served to Slurm's scripts there, and what can be done to it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from nodeagent.adapters.cgroup_mount import find_mount
from nodeagent.wiring import instance

from . import versions
from .settings import USERS
from .space import ENVIRONMENT, ROOT, Space, children

SOCKET = "/run/nodeagent/api.sock"
OCTETS = "Content-Type: application/octet-stream"
CONFIG = "/etc/nodeagent/nodeagent.toml"
READY_SECONDS = 60
LIVE = "queued,preparing,active,lost,releasing"
# A simulated machine has no gres.conf of its own.
SETTINGS = f'[slurm]\nrequest_from = "{versions.FIELD}"\ngres_conf = "/etc/slurm/gres.conf"\n'


class Place(Protocol):
    """A machine to be the agent of; *directory*: its files outside."""

    @property
    def space(self) -> Space: ...

    @property
    def directory(self) -> Path: ...

    def path(self, absolute: str) -> Path:
        """A file of the machine's, as seen from outside."""
        ...


@dataclass
class ServedAgent:
    """An agent in a node's space, where it is the node's own, on a machine file or what it finds there."""

    node: Place
    machine: str | None
    settings: str = SETTINGS
    process: subprocess.Popen[bytes] | None = None
    stopped: list[int] = field(default_factory=list)

    @property
    def state(self) -> Path:
        return self.node.directory / "state"

    @property
    def slice(self) -> Path:
        """The cgroup that its leases are in."""
        mount = find_mount()
        assert mount is not None
        return mount / instance(self.state)

    def start(self) -> None:
        """Start it and wait until it grants."""
        self.node.path(CONFIG).write_text(self.settings)
        words = ["--socket", SOCKET, "--state-dir", str(self.state)]
        words += ["--simulate", self.machine] if self.machine else []
        with (self.node.directory / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.node.space.command(sys.executable, "-m", "nodeagent.cli.main", "serve", *words),
                env={**ENVIRONMENT, "PYTHONPATH": str(ROOT)},  # of this tree, wherever it was copied to
                stderr=log,
            )
        deadline = time.monotonic() + READY_SECONDS
        while not self._ready():
            assert self.process.poll() is None and time.monotonic() < deadline, self.log()
            time.sleep(0.1)

    def stop(self) -> None:
        """End it as systemd would."""
        self.resume()
        self._signal(signal.SIGTERM)
        self._wait()

    def kill(self) -> None:
        """SIGKILL the whole agent, arbiter and worker."""
        self._signal(signal.SIGKILL)
        self._wait()

    def lose_power(self) -> None:
        """End all processes of the node, and what a boot does not keep: its cgroups, and what is in /run."""
        self.node.space.run("kill", "-KILL", "--", "-1")
        self._wait()
        _remove(self.slice)
        self.node.space.run("find", "/run/nodeagent", "-mindepth", "1", "-delete")

    def pause(self) -> None:
        """Hang the whole agent."""
        self.stopped = self._signal(signal.SIGSTOP)

    @contextlib.contextmanager
    def slowed(self) -> Iterator[None]:
        """Give it one part in two hundred of the time: an answer of milliseconds takes seconds."""
        over = threading.Event()

        def hold_up() -> None:
            while not over.wait(0.003):
                self.pause()
                over.wait(0.6)
                self.resume()

        thread = threading.Thread(target=hold_up)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def resume(self) -> None:
        """Let it go on; nsenter too, which stops with its child."""
        if self.stopped and self.process is not None:
            for pid in (*self.stopped, self.process.pid):
                os.kill(pid, signal.SIGCONT)
        self.stopped = []

    def call(self, method: str, target: str, **options: Any) -> Any:
        """One call as the node's root; what it answers, or None for no JSON."""
        words = ("curl", "-qs", "--unix-socket", SOCKET, "-X", method, f"http://localhost{target}")
        said = self.node.space.run(*words, **options).stdout
        return json.loads(said) if said[:1] in ("{", "[") else None

    def raw(self, call: str, fields: dict[str, str], user: str | None = None) -> str:
        """What the agent answers one of Slurm's scripts that sends these fields, as a user by name."""
        words = ("curl", "-qs", "--unix-socket", SOCKET, "--data-binary", "@-", "-H", OCTETS)
        body = "".join(f"{name}={value}\0" for name, value in fields.items())
        uid = None if user is None else USERS[user]
        return self.node.space.run(*words, f"http://localhost/v1/slurm/{call}", user=uid, input=body).stdout

    def leases(self, state: str = LIVE, after: int = 0) -> list[dict[str, Any]]:
        """The leases in these states, with ids above *after*."""
        found: list[dict[str, Any]] = []
        while True:
            page = self.call("GET", f"/v1/leases?state={state}&after={after}&limit=500")
            found += page["leases"]
            if page["next"] is None:
                return found
            after = page["next"]

    def last_id(self) -> int:
        """The highest id of a lease so far."""
        return max((one["id"] for one in self.leases(f"{LIVE},released,failed")), default=0)

    def lease(self, job: str) -> dict[str, Any] | None:
        """The live lease of a job."""
        found = [one for one in self.leases() if one["holder"]["id"] == job]
        assert len(found) <= 1, found
        return found[0] if found else None

    def outcomes(self, job: str) -> list[str]:
        """The state of each lease of a job that has ended, in order."""
        return [one["state"] for one in self.leases("released,failed") if one["holder"]["id"] == job]

    def device(self, key: str) -> dict[str, Any]:
        return self.call("GET", f"/v1/devices/{key}")

    def leftovers(self) -> list[str]:
        """What must not be there when no job is."""
        left = [f"lease {one['id']} of {one['holder']} is {one['state']}" for one in self.leases()]
        return left + [f"cgroup {one.name}" for one in self.slice.glob("*-*/")]

    def log(self) -> str:
        return (self.node.directory / "agent.log").read_text()[-3000:]

    def _ready(self) -> bool:
        words = ("curl", "-qsf", "--unix-socket", SOCKET, "http://localhost/readyz")
        return self.node.space.run(*words).returncode == 0

    def _signal(self, number: int) -> list[int]:
        """Send a signal to the arbiter and its worker; their pids."""
        assert self.process is not None
        arbiters = children(self.process.pid)  # of nsenter, which stays and waits
        pids = [pid for arbiter in arbiters for pid in (arbiter, *children(arbiter))]
        for pid in pids if number != signal.SIGTERM else arbiters:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return pids

    def _wait(self) -> None:
        assert self.process is not None
        self.process.wait(READY_SECONDS)


def served_agent(
    node: Place, machine: str | None = None, settings: str = SETTINGS
) -> contextlib.AbstractContextManager[ServedAgent]:
    """An agent that grants; its cgroups go with it."""
    return served(ServedAgent(node, machine, settings))


@contextlib.contextmanager
def served(agent: ServedAgent) -> Iterator[ServedAgent]:
    """The agent, started; its cgroups go with it."""
    agent.state.mkdir(mode=0o700)
    try:
        agent.start()
        yield agent
    finally:
        if agent.process is not None and agent.process.poll() is None:
            agent.stop()
        _remove(agent.slice)


def _remove(cgroup: Path) -> None:
    """Kill what is left in a cgroup of ours, and remove it with those below."""
    if cgroup.is_dir():
        (cgroup / "cgroup.kill").write_text("1")
        while "populated 1" in (cgroup / "cgroup.events").read_text():
            time.sleep(0.01)
        for below in sorted(cgroup.rglob("*/"), reverse=True):
            below.rmdir()
        cgroup.rmdir()
