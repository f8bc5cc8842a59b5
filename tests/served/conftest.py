"""A node of two GPUs whose device files are real ones, and the real agent that serves it.

A mount namespace of each test's own has them in /dev, and the machine's files in /sys/class. Render nodes
have the numbers of a driver that is not there: the kernel looks at the file's rights first, so whoever is let
in gets ENXIO, all others EACCES. /dev/kfd is /dev/zero's twin, which opens and can be mapped.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import gpulease
from gpulease.transport import Transport
from nodeagent.adapters import machine

MACHINE = "vega10"
RENDERS = ("renderD128", "renderD129")
SECONDS = 30
LET_IN = {"kfd": "opened", **dict.fromkeys(RENDERS, "ENXIO")}
# The directory, which becomes a part of it.
NAMESPACE = """
set -e
mount --make-rprivate /
mount -t overlay none -o "lowerdir=$1/machine/sys/class:/sys/class" /sys/class
mount -t tmpfs none "$1/dev"
for name in null zero full random urandom tty; do
    touch "$1/dev/$name" && mount --bind "/dev/$name" "$1/dev/$name"
done
mkdir "$1/dev/shm" "$1/dev/dri" && chmod 1777 "$1/dev/shm"
mknod -m 666 "$1/dev/kfd" c 1 5
for minor in 128 129; do mknod -m 666 "$1/dev/dri/renderD$minor" c 226 $minor; done
mount --rbind "$1/dev" /dev
mount -t tmpfs none /run
echo ready
exec sleep infinity
"""
PROBE = """
import errno, json, os
def tried(path):
    try:
        os.close(os.open(path, os.O_RDWR))
        return "opened"
    except OSError as fault:
        return errno.errorcode[fault.errno]
nodes = ["/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD129"]
print(json.dumps({path.split("/")[-1]: tried(path) for path in nodes}))
"""
# Opens /dev/kfd, maps it if told to, closes it then, and stays.
KEEPER = """
import mmap, os, sys
node = os.open("/dev/kfd", os.O_RDWR)
if sys.argv[1] == "mapping":
    kept = mmap.mmap(node, 4096, mmap.MAP_PRIVATE)  # which has a descriptor of its own
    os.closerange(3, 64)
print("kept", flush=True)
sys.stdin.read()
"""


@dataclass
class ServedNode:
    """One node, its agent, and its users."""

    directory: Path
    init: subprocess.Popen[str]
    agent: subprocess.Popen[bytes] | None = None
    keepers: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def socket(self) -> Path:
        return self.directory / "api.sock"

    @property
    def record(self) -> Path:
        return self.directory / "state/gate.json"

    def nodes(self) -> list[Path]:
        """The device nodes, as they are seen from outside."""
        dev = Path(f"/proc/{self.init.pid}/root/dev")
        return [dev / "kfd", *(dev / "dri" / name for name in RENDERS)]

    def modes(self) -> set[int]:
        return {node.stat().st_mode & 0o777 for node in self.nodes()}

    def start(self, gate: str = "off", on_leftover: str = "report") -> None:
        """Start the agent with these settings, and wait until it is ready."""
        settings = self.directory / "nodeagent.toml"
        devices = f'[devices]\ngate = "{gate}"\ngate_on_leftover = "{on_leftover}"\n'
        settings.write_text(f"{devices}[watch]\nseconds = 0.5\n")
        words = ["--config", str(settings), "--socket", str(self.socket)]
        words += ["--state-dir", str(self.directory / "state")]
        log = (self.directory / "agent.log").open("ab")
        with log:
            self.agent = subprocess.Popen(
                self._inside(sys.executable, "-m", "nodeagent.cli.main", "serve", *words), stderr=log
            )
        self.until(self._ready)

    def stop(self) -> None:
        """End the agent as systemd would."""
        if self.agent is not None and self.agent.poll() is None:
            self.agent.terminate()
            self.agent.wait(SECONDS)

    def kill(self) -> None:
        """SIGKILL the agent, arbiter and worker."""
        assert self.agent is not None
        children = Path(f"/proc/{self.agent.pid}/task/{self.agent.pid}/children").read_text().split()
        for pid in (self.agent.pid, *map(int, children)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        self.agent.wait()

    def http(self, method: str, target: str) -> Any:
        """One call of root's."""
        return json.loads(Transport(str(self.socket), timeout=10).call(method, target, None).body)

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.http("GET", "/v1/events")["events"] if event["kind"] == kind]

    def open_to(self, uid: int) -> dict[str, str]:
        """What becomes of opening each node as *uid*, in no lease's cgroup."""
        return json.loads(self._as(uid, "-c", PROBE))

    def opened_in_a_run(self, uid: int, *wanted: str) -> dict[str, str]:
        """The same from inside a lease, as `gpulease run` gives it."""
        command = ("--", "/usr/bin/python3", "-c", PROBE)
        return json.loads(self._as(uid, "-m", "gpulease", "run", *wanted, *command))

    def grant(self, uid: int, *wanted: str) -> dict[str, Any]:
        """A lease of *uid*'s that is held by time."""
        return json.loads(self._as(uid, "-m", "gpulease", "grant", "--json", *wanted))

    def release(self, uid: int, lease: dict[str, Any]) -> None:
        self._as(uid, "-m", "gpulease", "release", str(lease["id"]))

    def cut(self, uid: int, path: Path) -> None:
        """Let *uid* cut a file of its own short."""
        inside = Path("/", path.relative_to(f"/proc/{self.init.pid}/root"))
        self._as(uid, "-c", f"import os; os.truncate({str(inside)!r}, 1)")

    def keep_kfd_open(self, uid: int, by: str) -> int:
        """The pid of a process that keeps /dev/kfd *by* a ``descriptor``, or by a ``mapping`` alone."""
        keeper = subprocess.Popen(
            self._inside(*_setpriv(uid), "/usr/bin/python3", "-c", KEEPER, by),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.keepers.append(keeper)
        assert keeper.stdout is not None
        assert keeper.stdout.readline() == "kept\n"
        return keeper.pid

    def until(self, what: Any) -> Any:
        """Look until *what* gives something true; how long it takes is not asserted beyond the wait."""
        deadline = time.monotonic() + SECONDS
        while not (found := what()):
            assert time.monotonic() < deadline, (self.directory / "agent.log").read_text()[-3000:]
            time.sleep(0.05)
        return found

    def _ready(self) -> bool:
        assert self.agent is not None
        assert self.agent.poll() is None, (self.directory / "agent.log").read_text()[-3000:]
        try:
            return Transport(str(self.socket), timeout=10).call("GET", "/readyz", None).status == 200
        except Exception:  # any failure to answer is "not yet"
            return False

    def _as(self, uid: int, *words: str) -> str:
        done = subprocess.run(
            self._inside(*_setpriv(uid), "/usr/bin/python3", *words),
            env={**os.environ, "GPULEASE_SOCKET": str(self.socket), "PYTHONPATH": f"{self.directory}/client"},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _inside(self, *words: str) -> list[str]:
        return ["nsenter", f"--mount=/proc/{self.init.pid}/ns/mnt", "--", *words]


def _setpriv(uid: int) -> list[str]:
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]


@pytest.fixture
def node() -> Iterator[ServedNode]:
    """A node whose agent is not started yet; all is taken away after the test."""
    if os.geteuid() != 0:
        pytest.skip("device nodes, mount namespaces and other users need root")
    # Short, because a unix socket's path is; and open to the second users of the tests.
    directory = Path(tempfile.mkdtemp(prefix="served-"))
    directory.chmod(0o755)
    with contextlib.ExitStack() as last:
        # One at a time: who has a device open is looked for on the whole machine, and killed in one test.
        turn = last.enter_context(Path(tempfile.gettempdir(), "nodeagent-served.lock").open("w"))
        fcntl.flock(turn, fcntl.LOCK_EX)
        last.callback(shutil.rmtree, directory, ignore_errors=True)
        (directory / "dev").mkdir()
        shutil.copytree(Path(gpulease.__file__).parent, directory / "client" / "gpulease")
        machine.materialise(machine.find(MACHINE), directory / "machine")
        kfd = directory / "machine/sys/class/kfd/kfd"
        (kfd / "dev").write_text("1:5\n")
        for number in (kfd / "topology/nodes").iterdir():
            (number / "gpu_id").write_text(f"{int(number.name) * 1000}\n")
        words = ["unshare", "--mount", "sh", "-c", NAMESPACE, "sh", str(directory)]
        init = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert init.stdout is not None
        last.callback(init.stdout.close)
        last.callback(init.wait)
        last.callback(init.kill)
        assert init.stdout.readline() == "ready\n"
        made = ServedNode(directory, init)
        last.callback(made.stop)
        yield made
        for keeper in made.keepers:
            with keeper:
                keeper.kill()
