"""Reloads of a real agent under those who ask, wait and hold: nothing of theirs is lost."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nodeagent.adapters.sole import holder

from .conftest import PATIENCE, RunningNode

RELOADS = 10
SECONDS = 30 * PATIENCE
pytestmark = pytest.mark.unattacked  # what is attacked is test_attacks.py's


def ask(path: Path, method: str, target: str, body: Any = None) -> tuple[int, Any]:
    """One call without a second try, unlike the client's: status and body; raises OSError where none came."""
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n"
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(SECONDS)
        connection.connect(str(path))
        connection.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + data)
        received = b""
        while part := connection.recv(1 << 16):
            received += part
    head_of, _, answered = received.partition(b"\r\n\r\n")
    if not head_of:
        raise ConnectionResetError("it ended without an answer")
    return int(head_of.split()[1]), json.loads(answered) if answered else None


@dataclass
class Storm:
    """Clients in threads, each asking again and again until the end; what they were answered."""

    socket: Path
    device: str
    answers: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    granted: list[int] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def call(self, method: str, target: str, body: Any = None) -> Any:
        status, answer = ask(self.socket, method, target, body)
        self.answers.append(status)
        return answer

    def take_and_return(self) -> None:
        lease = self.call("POST", "/v1/leases", order("passer-by", 1, self.device))["id"]
        self.granted.append(lease)
        self.call("DELETE", f"/v1/leases/{lease}?wait=5")

    @contextmanager
    def raging(self, *clients: Callable[[], Any]) -> Iterator[None]:
        threads = [threading.Thread(target=self._client, args=(one,)) for one in clients]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.over.set()
            for thread in threads:
                thread.join()

    def _client(self, act: Callable[[], Any]) -> None:
        while not self.over.wait(0.02):
            try:
                act()
            except Exception as fault:
                self.faults.append(repr(fault))


def order(name: str, cu_percent: int, *devices: str, **more: Any) -> dict[str, Any]:
    chosen = {"device": list(devices)} if devices else {}
    return {
        "holder": {"kind": "client", "id": name},
        "anchor": {"kind": "ttl"},
        "slices": [{"cu_percent": cu_percent, "vram_bytes": 1 << 28, **chosen}],
        **more,
    }


def rewritten(node: RunningNode, text: str) -> None:
    """Other settings, which nobody has read yet."""
    assert node.state_dir is not None
    (node.state_dir.parent / "nodeagent.toml").write_text(text)


def reload(node: RunningNode, *words: str) -> subprocess.CompletedProcess[str]:
    """`nodeagent reload` to its end."""
    assert node.state_dir is not None
    where = ["--socket", str(node.socket), "--state-dir", str(node.state_dir)]
    where += ["--config", str(node.state_dir.parent / "nodeagent.toml")]
    return subprocess.run(
        [sys.executable, "-m", "nodeagent.cli.main", "reload", *where, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS * 4,
    )


def worker(node: RunningNode) -> list[str]:
    assert node.process is not None
    return Path(f"/proc/{node.process.pid}/task/{node.process.pid}/children").read_text().split()


def events(node: RunningNode, kind: str) -> list[dict[str, Any]]:
    return [one for one in node.http("GET", "/v1/events?limit=500").body["events"] if one["kind"] == kind]


def hang_up(node: RunningNode) -> None:
    """SIGHUP, and the event that tells what came of it."""
    assert node.process is not None
    before = len(events(node, "reloaded"))
    os.kill(node.process.pid, signal.SIGHUP)
    node.until(lambda: len(events(node, "reloaded")) > before, SECONDS)


def test_ten_reloads_in_a_storm_lose_nothing(start_agent):
    """Every call gets its answer, none of them a 5xx; leases and who waits in the queue are as before."""
    node = start_agent("mi210")
    full, other = [one["device"] for one in node.http("GET", "/v1/devices").body["devices"]][:2]
    storm = Storm(node.socket, other)
    whole = node.http("POST", "/v1/leases", order("whole", 100, full))
    kept = [node.http("POST", "/v1/leases", order("kept", 2, other)).body["id"] for _ in range(2)]
    ticket = node.http("POST", "/v1/leases", order("waits", 50, full, wait_seconds=600))
    assert [whole.status, ticket.status] == [201, 202]
    workers = {*worker(node)}
    with storm.raging(
        storm.take_and_return,
        lambda: storm.call("GET", "/v1/leases"),
        lambda: storm.call("GET", f"/v1/leases/{ticket.body['id']}?wait=5"),
        lambda: storm.call("GET", "/v1/events?newest=1"),
    ):
        for _ in range(RELOADS):
            hang_up(node)
            workers |= {*worker(node)}
    assert storm.faults == []
    assert set(storm.answers) <= {200, 201, 202}
    assert len(workers) == RELOADS + 1
    assert storm.granted == sorted(set(storm.granted))
    assert all(node.lease(lease)["state"] == "active" for lease in kept)
    assert node.lease(ticket.body["id"])["state"] == "queued"
    node.http("DELETE", f"/v1/leases/{whole.body['id']}?wait=5")
    node.until(lambda: node.lease(ticket.body["id"])["state"] == "active")


def test_new_settings_hold_without_a_restart(start_agent):
    """Modes, limits and defaults are those of the file; the command says which keys changed."""
    node = start_agent("mi210")
    rewritten(node, '[mode]\nclient = "observe"\n[defaults]\nttl_seconds = 77\n[server]\nthreads = 8\n')
    done = reload(node)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(": defaults.ttl_seconds, mode.client, server.threads changed\n")
    lease = node.http("POST", "/v1/leases", order("watched", 1)).body
    assert (lease["slices"], lease["anchor"]["ttl_seconds"]) == ([], 77)
    assert node.http("GET", "/v1/node").body["modes"]["client"] == "observe"


def test_the_limit_of_a_user_holds_without_a_restart(start_agent):
    """A limit that was made smaller refuses the next grant, and touches no lease."""
    if os.geteuid() != 0:
        pytest.skip("needs a second user")
    node = start_agent("mi210")
    grant = ("grant", "--cu", "1%", "--vram", "256M")
    assert node.gpulease(*grant, user=4242).returncode == 0
    rewritten(node, "[limits]\nlive_leases = 1\n")
    assert reload(node).returncode == 0
    assert node.gpulease(*grant, user=4242).returncode != 0
    assert len(node.live()) == 1


def test_a_wrong_file_changes_nothing(start_agent):
    """The command names every mistake, and SIGHUP leaves an event of them. The worker is the same."""
    node = start_agent("mi210")
    before = worker(node)
    rewritten(node, "[limits]\nlive_leass = 1\n[watch]\nseconds = 0\n")
    done = reload(node)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "limits.live_leass: unknown key" in done.stderr
    assert "watch.seconds: " in done.stderr
    assert node.process is not None
    os.kill(node.process.pid, signal.SIGHUP)
    node.until(lambda: events(node, "reload_failed"), SECONDS)
    assert "limits.live_leass" in events(node, "reload_failed")[0]["reason"]
    assert worker(node) == before


@pytest.mark.root
def test_only_root_has_it_reload(start_agent):
    """Another user can neither find the agent's process in its lock, nor send it the signal."""
    node = start_agent("mi210")
    assert node.state_dir is not None
    assert node.process is not None
    assert holder(node.state_dir) == node.process.pid
    before = worker(node)
    program = (
        f"import os\ntry: open('{node.state_dir}/lock')\nexcept PermissionError: print('closed')\n"
        f"try: os.kill({node.process.pid}, 1)\nexcept PermissionError: print('refused')"
    )
    assert node.python("-c", program, user=4242).stdout.split() == ["closed", "refused"]
    assert worker(node) == before


def test_the_service_manager_hears_of_it(tmp_path):
    """RELOADING with its time, then READY, and a sign of life with each."""
    path, settings = tmp_path / "notify", tmp_path / "nodeagent.toml"
    settings.touch(mode=0o600)
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as manager:
        manager.bind(str(path))
        manager.settimeout(SECONDS)
        agent = subprocess.Popen(
            [
                *(sys.executable, "-m", "nodeagent.cli.main", "serve", "--simulate", "mi210"),
                *("--socket", str(tmp_path / "s"), "--state-dir", str(tmp_path / "state")),
                *("--config", str(settings)),
            ],
            env={**os.environ, "NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "60000000"},
            stderr=(tmp_path / "log").open("wb"),
        )
        try:
            heard = (manager.recv(4096).decode().splitlines() for _ in itertools.count())
            next(lines for lines in heard if "READY=1" in lines)
            sent = time.monotonic_ns() // 1000
            os.kill(agent.pid, signal.SIGHUP)
            begun = next(lines for lines in heard if "RELOADING=1" in lines)
            ended = next(lines for lines in heard if "READY=1" in lines)
        finally:
            agent.terminate()
            agent.wait()
    times = [int(line.partition("=")[2]) for line in begun if line.startswith("MONOTONIC_USEC=")]
    assert len(times) == 1
    assert sent <= times[0] <= time.monotonic_ns() // 1000
    assert "WATCHDOG=1" in begun
    assert "WATCHDOG=1" in ended
