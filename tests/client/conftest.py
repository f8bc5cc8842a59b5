"""A small agent on a real unix socket, and the client's command in processes of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import socketserver
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from .engine import FakeEngine, fake_engine

CLIENT = Path(__file__).parents[2] / "client" / "gpulease"
RECORDED = {"NODEAGENT_EXERCISED", "PYTEST_CURRENT_TEST"}  # tests/exercised


def of_the_client() -> dict[str, str]:
    """What a process needs to import the client, and to have noted what it does there."""
    path = os.pathsep.join([str(CLIENT), *os.environ.get("PYTHONPATH", "").split()])
    return {"PYTHONPATH": path, **{name: os.environ[name] for name in RECORDED & os.environ.keys()}}


DEVICE = {
    "device": "0000:c1:00.0/0",
    "epoch": 1,
    "pci": "0000:c1:00.0",
    "partition": 0,
    "render_node": "renderD128",
    "kfd_node": 2,
    "ordinal": 0,
    "card": "card1",
    "gpu_id": 51234,
    "hip_index": 0,
    "smi_index": 0,
    "slurm_index": None,
    "unique_id": "0x00a1b2c3d4e5f607",
    "uuid": "GPU-00a1b2c3d4e5f607",
    "product": "AMD Instinct MI300X",
    "gfx": "gfx942",
    "cus": 304,
    "row": 32,
    "vram_bytes": 192 << 30,
    "grantable_bytes": 190 << 30,
    "queue_slots": 24,
    "numa_node": 0,
    "hive": None,
    "state": "healthy",
    "reason": None,
    "free": {"cus": 304, "vram_bytes": 190 << 30, "queue_slots": 24},
}
REFUSAL = {
    "title": "The request does not fit now",
    "status": 409,
    "code": "NodeInsufficientDevice",
    "detail": "0 devices fit, 1 is asked for",
    "blockers": [1001, 1002],
    "devices": [
        {"device": f"0000:{n:02x}:00.0/0", "code": "CardInsufficientCore", "why": "32 CUs free, 64 asked"}
        for n in range(8)
    ],
    "earliest_at": "2031-05-04T12:00:00Z",
    "next": "wait with --wait, or ask for less",
}
CONTAINER = {
    "engine": "docker",
    "id": None,
    "cgroup_parent": "gpulease-1001.slice",
    "devices": [
        {"host": "/dev/kfd", "inside": "/dev/kfd"},
        {"host": "/dev/dri/renderD128", "inside": "/dev/dri/renderD128"},
    ],
    "groups": [44, 109],
    "mounts": [
        {"source": "/run/nodeagent/a,b/limits", "target": "/etc/gpulease/limits", "read_only": True},
        {"source": "/run/nodeagent/hook/usage", "target": "/run/gpulease/usage", "read_only": False},
    ],
    "environment": {"ROCR_VISIBLE_DEVICES": "0", "HSA_CU_MASK": "0:0-75", "HIP_VISIBLE_DEVICES": None},
    "labels": {"gpulease.lease": "1001", "gpulease.ticket": "ab" * 16},
    "stop_timeout_seconds": 70,
    "cdi": None,
    "seccomp": None,
}
Reply = tuple[int, Any, dict[str, str]]


@dataclass
class FakeAgent:
    """Serves what the API documents, remembers what it was asked, and fails on demand."""

    path: str
    devices: list[dict[str, Any]] = field(default_factory=lambda: [dict(DEVICE)])
    leases: dict[int, dict[str, Any]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    inside: list[dict[str, Any]] = field(default_factory=list)  # containers
    requests: list[tuple[str, str, Any]] = field(default_factory=list)
    attached: list[int] = field(default_factory=list)  # peers' pids
    canned: list[Reply | None] = field(default_factory=list)  # answers for the next calls; None: hang up
    canned_grant: Reply | None = None
    grant_state: str = "active"
    grant_reason: str | None = None
    grant_queue: dict[str, Any] | None = None
    environment: dict[str, str | None] = field(
        default_factory=lambda: {"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": None}
    )
    release_state: str = "released"
    interrupts: bool = False  # sends a signal to the first who asks for a container in a lease
    container: dict[str, Any] = field(default_factory=dict)  # what differs from CONTAINER

    def called(self, method: str, pattern: str = "") -> list[Any]:
        """The bodies of the calls so far that *method* and *pattern* (at the start of the target) fit."""
        return [body for verb, target, body in self.requests if verb == method and re.match(pattern, target)]

    def answer(self, method: str, target: str, body: Any, pid: int) -> Reply | None:
        self.requests.append((method, target, body))
        if self.canned:
            return self.canned.pop(0)
        route, _, _ = target.partition("?")
        if route == "/v1/node":
            return 200, {"name": "gpu01", "machine": "test", "version": "0.1.0", "ready": True}, {}
        if route == "/v1/devices":
            return self._devices(target.partition("device=")[2])
        if route.startswith("/v1/devices/"):
            return 200, self.devices[0], {}
        if route == "/v1/events":
            if newest := re.search(r"newest=(\d+)", target):
                return 200, {"events": self.events[-int(newest[1]) :], "next": 0}, {}
            after = int(re.search(r"after=(\d+)", target).group(1))
            return 200, {"events": [e for e in self.events if e["id"] > after], "next": after}, {}
        if route == "/v1/leases":
            if method == "POST":
                return self.canned_grant or self._grant(body)
            return 200, {"leases": list(self.leases.values()), "next": None}, {}
        return self._lease(method, route, pid)

    def _devices(self, names: str) -> Reply:
        """Those of which a name is one of the values; the real agent understands more."""
        wanted = [name for name in names.split(",") if name]
        known = {str(value) for device in self.devices for value in device.values()}
        if unknown := [name for name in wanted if name not in known]:
            problem = {"code": "UnknownThing", "detail": f"{unknown[0]!r} names no device"}
            return 404, {"status": 404, **problem}, {}
        found = [one for one in self.devices if not wanted or {*wanted} & {str(v) for v in one.values()}]
        return 200, {"devices": found, "next": None}, {}

    def _grant(self, body: Any) -> Reply:
        for lease in self.leases.values():
            if lease["request_id"] == body["request_id"]:
                return 200, lease, {}
        lease = self.add_lease(holder={**body["holder"], "uid": os.getuid()}, anchor=body["anchor"])
        lease.update(state=self.grant_state, request_id=body["request_id"], reason=self.grant_reason)
        lease["queue"] = self.grant_queue
        if body["anchor"]["kind"] == "container" or body.get("cdi"):
            lease["container"] = {**CONTAINER, **self.container}
        return 201, lease, {}

    def add_lease(self, **changes: Any) -> dict[str, Any]:
        number = 1001 + len(self.leases)
        lease: dict[str, Any] = {
            "id": number,
            "state": "active",
            "masked": False,
            "request_id": None,
            "holder": {"kind": "client", "id": "someone", "uid": os.getuid()},
            "anchor": {"kind": "ttl"},
            "slices": [
                {
                    "device": DEVICE["device"],
                    "cus": "0-63",
                    "cu_requested": 76,
                    "cu_count": 64,
                    "effective_cus": 64,
                    "vram_bytes": 48 << 30,
                    "queue_slots": 5,
                    "state": "held",
                }
            ],
            "guarantee": {"memory": "advisory", "compute": "mask", "visibility": "environment"},
            "environment": {**self.environment, "GPULEASE_ID": str(number)},
            "cgroup": None,
            "created_at": "2031-05-04T10:00:00Z",
            "expires_at": None,
            "reason": None,
        }
        lease.update(changes)
        self.leases[number] = lease
        return lease

    def _lease(self, method: str, route: str, pid: int) -> Reply:
        number, _, verb = route.removeprefix("/v1/leases/").partition("/")
        lease = self.leases.get(int(number))
        if lease is None:
            return (204, None, {}) if method == "DELETE" else (404, {"code": "UnknownThing"}, {})
        if verb.startswith("containers"):
            return self._guest(method, lease, pid)
        if method == "DELETE":
            lease["state"] = self.release_state
            return 200 if lease["state"] == "released" else 202, lease, {}
        if verb == "attach":
            self.attached.append(pid)
        if method == "GET" and lease["state"] == "queued":
            lease["state"] = "active"
        return 200, lease, {}

    def _guest(self, method: str, lease: dict[str, Any], pid: int) -> Reply:
        if method == "DELETE":
            return 204, None, {}
        if method == "GET":
            return 200, {"containers": self.inside}, {}
        if self.interrupts:
            self.interrupts = False
            os.kill(pid, signal.SIGTERM)
        guarantee = {"memory": "hook", "compute": "hook", "visibility": "environment", "ipc": "shared"}
        container = {**CONTAINER, **self.container}
        return 201, {"lease": lease["id"], "id": 3, "guarantee": guarantee, "container": container}, {}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        agent: FakeAgent = self.server.agent
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        peer = self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        reply = agent.answer(self.command, self.path, body, struct.unpack("iII", peer)[0])
        self.close_connection = True
        if reply is None:
            return
        status, answer, headers = reply
        content = (
            answer if isinstance(answer, bytes) else b"" if answer is None else json.dumps(answer).encode()
        )
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_DELETE = _serve

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_: object) -> None:
        pass


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    agent: FakeAgent

    def handle_error(self, *_: object) -> None:
        """A client that was killed in a call is part of the tests."""


@pytest.fixture(autouse=True, scope="session")
def terminal_signals() -> None:
    """As from a terminal, also when the tests run in the background, where a shell ignores these."""
    for one in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(one, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[FakeAgent]:
    path = tmp_path / "api.sock"
    with _Server(str(path), _Handler) as server:
        server.agent = FakeAgent(str(path))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server.agent
        server.shutdown()
        thread.join()


@dataclass
class Command:
    """Starts `python -m gpulease` with nothing of this process's environment."""

    socket: str
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        environment = {
            "PATH": os.environ["PATH"],
            **of_the_client(),
            "PYTHONIOENCODING": "utf-8",
            "GPULEASE_SOCKET": self.socket,
            "COLUMNS": "80",
            **options.pop("env", {}),
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "gpulease", *words],
            **{
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                "text": True,
                "env": environment,
                **options,
            },
        )
        self.started.append(process)
        return process

    def __call__(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        process = self.start(*words, **options)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(words, process.returncode, out, err)


@pytest.fixture
def gpulease(agent: FakeAgent) -> Iterator[Command]:
    command = Command(agent.path)
    yield command
    for process in command.started:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[FakeEngine]:
    """An engine whose images are files, and whose client only writes down its calls."""
    (tmp_path / "engine").mkdir()
    with fake_engine(tmp_path / "engine") as engine:
        yield engine


@pytest.fixture
def run(gpulease: Any, engine: FakeEngine) -> Callable[..., Any]:
    """`gpulease` beside that engine."""
    return lambda *words, **more: gpulease(*words, env={**engine.environment, **more.pop("env", {})}, **more)


@pytest.fixture
def until() -> Callable[[Callable[[], Any]], Any]:
    """Wait until something is so; fail after a while."""

    def wait(condition: Callable[[], Any]) -> Any:
        for _ in range(2000):
            found = condition()
            if found:
                return found
            time.sleep(0.01)
        raise AssertionError("it never came to be")

    return wait


@pytest.fixture
def refusal() -> dict[str, Any]:
    return json.loads(json.dumps(REFUSAL))


@pytest.fixture
def device() -> dict[str, Any]:
    return json.loads(json.dumps(DEVICE))
