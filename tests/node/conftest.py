"""One running agent for the acceptance suite: started here on a machine file, or one that runs already.

The suite is the same for every kind of node: set NODEAGENT_SOCKET to run it against an agent that you started
yourself (on a rig, on real GPUs); else each module gets an agent on the simulated machine NODEAGENT_MACHINE.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import gpulease
from gpulease.transport import Transport
from nodeagent.adapters.cgroup_mount import find_mount
from nodeagent.wiring import instance

from .attacks import Attacks, weaker_than_stated

MACHINE = os.environ.get("NODEAGENT_MACHINE", "mi300x-spx")
# How many times slower than a computer of today everything is: 15 where the processor is emulated.
PATIENCE = float(os.environ.get("NODEAGENT_PATIENCE", "1"))
READY_SECONDS = 30 * PATIENCE
COMMAND_SECONDS = 60 * PATIENCE
LIVE = "queued,preparing,active,lost,releasing"
EVERY_STATE = f"{LIVE},released,failed"


@dataclass
class Answer:
    """One HTTP answer."""

    status: int
    body: Any


@dataclass
class RunningNode:
    """An agent, and the commands that a user has on its node."""

    socket: Path
    state_dir: Path | None
    client: Path  # a copy of the client that every user can read
    machine: str = MACHINE
    process: subprocess.Popen[bytes] | None = None
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    settings: str = ""  # what nodeagent.toml says
    attacked: bool = True  # whether each lease is attacked as soon as it is taken
    attacks: Attacks = field(init=False)

    def __post_init__(self) -> None:
        self.attacks = Attacks(self.client)

    def start(self, *, ready: bool = True) -> None:
        """Start our own agent and wait until it is ready, or only until it answers."""
        assert self.state_dir is not None
        config = self.state_dir.parent / "nodeagent.toml"
        config.write_text(self.settings)
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "nodeagent.cli.main", "serve", "--simulate", self.machine),
                *("--socket", str(self.socket), "--state-dir", str(self.state_dir)),
                *("--config", str(config)),
            ],
            stderr=(self.state_dir.parent / "agent.log").open("ab"),
        )
        self.await_answer("/readyz" if ready else "/healthz")

    def await_answer(self, target: str) -> None:
        """Wait until *target* answers 200."""
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if self.process is not None and self.process.poll() is not None:
                break
            try:
                if self.http("GET", target).status == 200:
                    return
            except Exception:  # any failure to answer is "not yet"
                time.sleep(0.1)
        log = (self.socket.parent / "agent.log").read_text()[-3000:]
        raise AssertionError(f"the agent was not ready within {READY_SECONDS} s:\n{log}")

    def kill(self) -> None:
        """SIGKILL the whole agent, arbiter and worker, as a crash would."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        self.process.kill()
        self.process.wait()
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)

    def stop(self) -> None:
        """End the agent as systemd would."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(timeout=COMMAND_SECONDS)

    def http(self, method: str, target: str, body: Any = None) -> Answer:
        """One call as this process; a lease that it takes is attacked."""
        data = None if body is None else json.dumps(body).encode()
        answer = Transport(str(self.socket), timeout=10 * PATIENCE).call(method, target, data)
        answered = Answer(answer.status, json.loads(answer.body) if answer.body[:1] in (b"{", b"[") else None)
        if (answer.status, target) == (201, "/v1/leases"):
            self.attack(answered.body["id"])
        return answered

    def gpulease(
        self, *words: str, user: int | None = None, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run the command to its end, as *user* if given; a lease that it takes is attacked."""
        done = self.python("-m", "gpulease", *self.attacking(words, user), user=user, **options)
        if words[0] in ("grant", "adopt") and done.returncode == 0:
            self.attack(max(lease["id"] for lease in self.live()), user)
        return done

    def python(
        self, *words: str, user: int | None = None, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run Python with the client to its end, as *user* if given."""
        return subprocess.run(
            [self.interpreter(user), *words],
            env=self.environment(),
            text=True,
            capture_output=True,
            timeout=COMMAND_SECONDS,
            check=False,
            **as_user(user),
            **options,
        )

    def background(self, *words: str, user: int | None = None) -> subprocess.Popen[str]:
        """Start the command and leave it running; it is ended after the test."""
        child = subprocess.Popen(
            [self.interpreter(user), "-m", "gpulease", *self.attacking(words, user)],
            env=self.environment(),
            cwd="/",  # where every user may be
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **as_user(user),
        )
        self.started.append(child)
        return child

    def attacking(self, words: Sequence[str], user: int | None = None) -> Sequence[str]:
        """The words of a command; one that would run something in a lease attacks the lease first."""
        if words[0] != "run" or "--" not in words or not self.attacked:
            return words
        at = words.index("--") + 1
        return [*words[:at], *self.attacks.command(self.interpreter(user), *words[at:])]

    def attack(self, lease: int, user: int | None = None) -> None:
        """Attack a live lease from inside, as *user*, who may enter it."""
        if not self.attacked:
            return
        command = self.attacks.command(self.interpreter(user))
        done = self.python("-m", "gpulease", "exec", str(lease), "--", *command, user=user)
        assert done.returncode == 0, f"lease {lease} cannot be attacked: {done.stderr}"

    def taken(self, since: int = 0) -> list[dict[str, Any]]:
        """Every lease with an id above *since* that was ever granted, ended ones too."""
        leases = self.http("GET", f"/v1/leases?state={EVERY_STATE}&after={since}&limit=500").body["leases"]
        return [lease for lease in leases if lease["environment"] is not None]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "GPULEASE_SOCKET": str(self.socket), "PYTHONPATH": str(self.client)}

    @staticmethod
    def interpreter(user: int | None) -> str:
        """Ours; for another user the system's, which everyone may run: the client needs nothing else."""
        return sys.executable if user is None else "/usr/bin/python3"

    def device(self) -> dict[str, Any]:
        """The first healthy device."""
        devices = self.http("GET", "/v1/devices").body["devices"]
        return next(one for one in devices if one["state"] == "healthy")

    def free(self, key: str) -> dict[str, int]:
        return self.http("GET", f"/v1/devices/{key}").body["free"]

    def lease(self, lease_id: int) -> dict[str, Any]:
        return self.http("GET", f"/v1/leases/{lease_id}").body

    def live(self) -> list[dict[str, Any]]:
        """Every lease that has not ended."""
        return self.http("GET", f"/v1/leases?state={LIVE}").body["leases"]

    def until(self, what: Any, seconds: float = 20) -> Any:
        """Look until *what* gives something true; how long it takes is not asserted beyond the wait."""
        deadline = time.monotonic() + seconds * PATIENCE
        while not (found := what()):
            assert time.monotonic() < deadline, "it never came true"
            time.sleep(0.05)
        return found


def as_user(user: int | None) -> dict[str, Any]:
    """Arguments of subprocess that make the child another user, with no group of ours."""
    return {} if user is None else {"user": user, "group": user, "extra_groups": []}


@contextlib.contextmanager
def running_node(machine: str, given: str | None = None, settings: str = "") -> Iterator[RunningNode]:
    """An agent on *machine* with *settings*, or the one behind the socket *given*."""
    # Short, because a unix socket's path is; and open to the second users of the tests.
    directory = Path(tempfile.mkdtemp(prefix="nodeagent-"))
    directory.chmod(0o755)
    shutil.copytree(Path(gpulease.__file__).parent, directory / "client" / "gpulease")
    state = None if given else directory / "state"
    socket = Path(given or directory / "api.sock")
    running = RunningNode(socket, state, directory / "client", machine, settings=settings)
    try:
        if state is not None:
            state.mkdir(mode=0o700)
            running.start()
        yield running
    finally:
        running.stop()
        if state is not None:
            remove_traces(instance(state))
        shutil.rmtree(directory, ignore_errors=True)


def remove_traces(name: str) -> None:
    """What the agent of the cgroup *name* left elsewhere, when it was killed or stopped under live leases."""
    stem, mount = name.removesuffix(".slice"), find_mount()
    for place in ("leases", "hook", "hook/usage/*"):
        for left in Path("/run/nodeagent").glob(f"{place}/{stem}"):
            shutil.rmtree(left, ignore_errors=True)
    if mount is not None and (top := mount / name).is_dir():
        with contextlib.suppress(OSError):
            (top / "cgroup.kill").write_text("1")
            for cgroup in sorted(top.rglob("*/"), reverse=True):
                cgroup.rmdir()
            top.rmdir()


@pytest.fixture(scope="module")
def agent() -> Iterator[RunningNode]:
    """The agent that a module's tests share."""
    with running_node(MACHINE, os.environ.get("NODEAGENT_SOCKET")) as running:
        yield running


@pytest.fixture
def own_agent(agent: RunningNode) -> None:
    """For tests that stop the agent, or change its files: it must be one that they started."""
    if agent.process is None:
        pytest.skip("the agent is not ours to stop")


@pytest.fixture
def start_agent(request: pytest.FixtureRequest) -> Iterator[Callable[..., RunningNode]]:
    """Starts agents of the test's own, by the name of a machine file."""
    with contextlib.ExitStack() as stack:

        def start(machine: str, settings: str = "") -> RunningNode:
            running = stack.enter_context(running_node(machine, settings=settings))
            return stack.enter_context(all_attacked(running, request))

        yield start


@pytest.fixture
def node(agent: RunningNode, request: pytest.FixtureRequest) -> Iterator[RunningNode]:
    """The module's agent; whatever a test leaves running or leased is ended after it."""
    with all_attacked(agent, request):
        yield agent


@contextlib.contextmanager
def all_attacked(node: RunningNode, request: pytest.FixtureRequest) -> Iterator[RunningNode]:
    """The node for one test, which fails if a lease of it was not attacked, or held less than it states."""
    before = max((lease["id"] for lease in node.taken()), default=0)
    node.attacked = request.node.get_closest_marker("unattacked") is None
    yield node
    for lease in node.live():
        if lease["state"] == "active" and node.attacks.outcomes(lease["id"]) is None:
            node.attack(lease["id"])
    clean(node)
    for lease in node.taken(before):
        outcomes = node.attacks.outcomes(lease["id"])
        assert outcomes or not node.attacked, f"lease {lease['id']} was not attacked"
        assert weaker_than_stated(lease["guarantee"]["memory"], outcomes or {}) == []


def clean(node: RunningNode) -> None:
    """End what was left running and leased."""
    for child in node.started:
        if child.poll() is None:
            child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
    node.started.clear()
    for lease in node.live():
        node.http("DELETE", f"/v1/leases/{lease['id']}?wait=5")
    node.until(lambda: not node.live())
