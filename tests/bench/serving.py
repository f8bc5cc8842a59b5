"""Servers to measure: the agent on a simulated machine, and the floor below it, each in its own place."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nodeagent.adapters import machine
from nodeagent.adapters.cgroup_mount import find_mount
from nodeagent.adapters.hook_files import HookFiles
from nodeagent.adapters.machine_file import Files
from nodeagent.adapters.sidecar_files import ROOT as SIDECARS
from nodeagent.adapters.sidecar_files import SidecarFiles
from nodeagent.wiring import instance, stem
from tests.bench.clients import Client, RefusedError

AGENT = ("-m", "nodeagent.cli.main", "serve", "--simulate", "mi300x-spx")
LAID_OUT = str(Path(__file__).with_name("laid_out.py"))
FLOOR = (str(Path(__file__).with_name("floor.py")),)
START_SECONDS = 30
NODES = "sys/class/kfd/kfd/topology/nodes"


@dataclass(frozen=True, slots=True)
class Server:
    """One that runs: its arbiter, and where it is."""

    process: subprocess.Popen[bytes]
    directory: Path

    @property
    def socket(self) -> Path:
        return self.directory / "s"

    @property
    def state(self) -> Path:
        return self.directory / "state"

    @property
    def worker(self) -> int:
        (pid,) = workers(self.process.pid)
        return pid

    @property
    def pids(self) -> tuple[int, ...]:
        """The arbiter and its worker."""
        return (self.process.pid, *workers(self.process.pid))

    def await_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError, RefusedError):
                Client(self.socket).get("/readyz")
                return
            time.sleep(0.005)
        raise RuntimeError(f"the agent did not start:\n{(self.directory / 'log').read_text()[-3000:]}")


@contextlib.contextmanager
def scratch(*, memory: bool = False) -> Iterator[Path]:
    """A directory for one server: on the disk, as an agent's state is. Short, as a socket's path is."""
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir="/dev/shm" if memory else None))
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def numbered(name: str, directory: Path) -> Path:
    """A file in *directory* of the shipped machine *name*, whose GPUs have KFD's numbers.

    The captured ones were read where those are not shown, and without them no lease has the hook's files.
    """
    found = machine.find(name)
    files = dict(found.captured.files)
    for path, text in found.captured.files.items():
        if path.startswith(NODES) and path.endswith("/properties"):
            number = int(path.removeprefix(f"{NODES}/").partition("/")[0])
            is_gpu = b"\nsimd_count 0\n" not in text
            files[f"{NODES}/{number}/gpu_id"] = f"{4096 + number if is_gpu else 0}\n".encode()
    path = directory / f"{name}.json"
    machine.dump(replace(found, captured=Files(files, found.captured.links)), path)
    return path


def numbered_agent(last: contextlib.ExitStack) -> tuple[str, ...]:
    """The words of an agent on eight of MI300X, whose file is there until *last* ends."""
    directory = last.enter_context(scratch())
    return (*AGENT[:-1], str(numbered(AGENT[-1], directory)))


@contextlib.contextmanager
def laid_out(name: str, settings: str) -> Iterator[tuple[str, ...]]:
    """The words of an agent with these settings on the machine's files, in memory as a kernel's are."""
    with scratch(memory=True) as directory:
        tree, config = directory / "root", directory / "nodeagent.toml"
        machine.materialise(machine.find(str(numbered(name, directory))), tree)
        config.write_text(settings, encoding="utf-8")
        yield (LAID_OUT, "serve", "--simulate", str(tree), "--config", str(config))


@contextlib.contextmanager
def serving(words: Sequence[str]) -> Iterator[Server]:
    """Python with *words*, an agent's or the floor's, in a directory of its own; nothing of it is left."""
    with scratch() as directory, agent(words, directory) as process:
        yield Server(process, directory)


@contextlib.contextmanager
def agent(words: Sequence[str], directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """An agent in *directory*, ready, of which nothing is left."""
    try:
        with started(words, directory) as server:
            yield server.process
    finally:
        forget(directory / "state")


@contextlib.contextmanager
def started(words: Sequence[str], directory: Path) -> Iterator[Server]:
    """Python with *words* in *directory*, ready. Its leases' cgroups and files stay for the next one."""
    places = ("--socket", str(directory / "s"), "--state-dir", str(directory / "state"))
    with (directory / "log").open("ab") as log:
        process = subprocess.Popen([sys.executable, *words, *places], stderr=log, stdout=log)
        try:
            server = Server(process, directory)
            server.await_ready()
            yield server
        finally:
            process.terminate()
            process.wait(timeout=START_SECONDS)


def forget(state: Path) -> None:
    """Take away what the leases of an agent that will not come back have left."""
    remove_cgroups(state)
    files, sidecars = HookFiles(stem(state)), SidecarFiles(stem(state))
    for lease in files.leases():
        files.remove(lease)
    for lease in sidecars.leases():
        sidecars.remove(lease)
    with contextlib.suppress(OSError):
        SIDECARS.joinpath(stem(state)).rmdir()


def remove_cgroups(state_dir: Path) -> None:
    """Remove what the leases of an agent that will not come back have left: empty cgroups."""
    mount = find_mount()
    top = mount / instance(state_dir) if mount else None
    if top is None or not top.exists():
        return
    for cgroup in (*(entry for entry in top.iterdir() if entry.is_dir()), top):
        with contextlib.suppress(OSError):
            cgroup.rmdir()


def workers(arbiter: int) -> list[int]:
    """The worker processes of a gunicorn arbiter."""
    text = Path(f"/proc/{arbiter}/task/{arbiter}/children").read_text(encoding="ascii")
    return [int(pid) for pid in text.split()]
