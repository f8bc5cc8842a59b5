"""What the rig's tests use: a lease's cgroups on the real kernel, and processes that hold fake VRAM."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from nodeagent.adapters.cgroup import CgroupRef, CgroupTree
from nodeagent.adapters.cgroup_mount import find_mount
from nodeagent.adapters.dmem import DmemController
from tests.rig.wired import Wired, closed, open_again

GUEST = Path("/run/rig")  # tests/rig/guest makes it
PARAMETERS = Path("/sys/module/fakegpu/parameters")
KFD_PROC = Path("/sys/class/kfd/kfd/proc")
PATIENCE_SECONDS = 10 * float(os.environ.get("NODEAGENT_PATIENCE", "1"))


def missing(*, dmem: bool) -> str | None:
    """Why a test that wants a kernel with dmem, or one without, cannot run here; or None."""
    mount = find_mount()
    controllers = mount / "cgroup.controllers" if mount else None
    offered = controllers is not None and "dmem" in controllers.read_text().split()
    if not dmem:
        if not GUEST.is_dir():
            return "runs in the rig, on a kernel without dmem (RIG_KERNEL=stock)"
        return "this kernel has dmem; RIG_KERNEL=stock boots one that has not" if offered else None
    if not offered:
        return "the kernel offers no dmem controller; make test-rig boots one that does"
    if not PARAMETERS.is_dir():
        return "the module fakegpu is not loaded; make test-rig boots a machine that has it"
    return "needs uid 0" if os.geteuid() else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason, where there is no such kernel."""
    for item in items:
        mark = item.get_closest_marker("rig")
        if mark and (reason := missing(dmem=mark.kwargs.get("dmem", True))):
            item.add_marker(pytest.mark.skip(reason=reason))


@dataclass(frozen=True)
class Gpu:
    """One GPU of fakegpu."""

    pci: str
    size: int  # bytes
    gpu_id: int
    minor: int

    @property
    def region(self) -> str:
        return f"drm/{self.pci}/vram"

    @property
    def node(self) -> Path:
        return Path(f"/dev/dri/renderD{self.minor}")


# Commands on stdin, "ok" or the errno's name on stdout. What it allocates, its process holds.
_HOLDER = """
import errno, os, sys
node = os.open(sys.argv[1], os.O_RDWR)
print("ok", flush=True)
for line in sys.stdin:
    try:
        os.write(node, line.strip().encode())
        print("ok", flush=True)
    except OSError as fault:
        print(errno.errorcode[fault.errno], flush=True)
"""


class Holder:
    """A process with one render node open, of *user* or ours."""

    def __init__(self, gpu: Gpu, user: str | None = None) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-ISc", _HOLDER, str(gpu.node)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
        assert self._answer() == "ok"

    @property
    def pid(self) -> int:
        return self.child.pid

    def do(self, command: str) -> str:
        """Write *command* to the node: ``ok``, or the name of the errno."""
        self.send(command)
        return self._answer()

    def send(self, command: str) -> None:
        """Write *command* and do not wait for its end."""
        assert self.child.stdin
        self.child.stdin.write(command + "\n")
        self.child.stdin.flush()

    def state(self) -> str:
        """As proc_pid_stat(5): R, S, D, Z."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def kill(self) -> None:
        """SIGKILL; does not wait for the end, which may not come."""
        self.child.send_signal(signal.SIGKILL)

    def end(self) -> None:
        """End it and wait for that."""
        self.kill()
        self.child.wait()
        for pipe in (self.child.stdin, self.child.stdout):
            if pipe:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _answer(self) -> str:
        assert self.child.stdout
        return self.child.stdout.readline().strip()


class Rig:
    """The agent's own adapters on the real kernel."""

    def __init__(self) -> None:
        mount = find_mount()
        assert mount
        self.tree = CgroupTree(mount, "gpulease_rig.slice")
        self.dmem = DmemController(self.tree)
        self.gpus = fake_gpus()
        self._leases: list[CgroupRef] = []
        self._holders: list[Holder] = []

    @property
    def kernel(self) -> tuple[int, int]:
        """Major and minor version."""
        major, minor = platform.release().split(".")[:2]
        return int(major), int(minor)

    def lease(self, lease_id: int) -> CgroupRef:
        """A lease's cgroup with dmem files."""
        ref = self.tree.create(lease_id)
        self._leases.append(ref)
        self.dmem.enable(ref.path)
        return ref

    def directory(self, ref: CgroupRef) -> Path:
        return Path(f"{self.tree.mount}{ref.path}")

    def holder(self, gpu: Gpu, directory: Path | None = None, user: str | None = None) -> Holder:
        """A process of *user* with *gpu* open, in the cgroup *directory*."""
        holder = Holder(gpu, user)
        self._holders.append(holder)
        if directory is not None:
            (directory / "cgroup.procs").write_text(str(holder.pid))
        return holder

    def charged(self, ref: CgroupRef, gpu: Gpu) -> int:
        return self.dmem.current(ref).get(gpu.region, 0)

    def held(self, pid: int, gpu: Gpu) -> int | None:
        """Bytes that KFD's entry of *pid* shows; None without an entry."""
        try:
            return int((KFD_PROC / str(pid) / f"vram_{gpu.gpu_id}").read_text())
        except OSError as fault:
            # ENODEV: it went while it was being read.
            assert fault.errno in (errno.ENOENT, errno.ENODEV)
            return None

    def fault(self, **parameters: object) -> None:
        """Set faults of fakegpu by name."""
        for name, value in parameters.items():
            (PARAMETERS / name).write_text(str(value))

    def clean(self) -> None:
        """End every holder, and remove every cgroup."""
        self.fault(hang="never", free_delay_ms=0, limit_errno=errno.ENOMEM)
        for holder in self._holders:
            holder.end()
        for ref in self._leases:
            with contextlib.suppress(FileNotFoundError), self.tree.open(ref) as cgroup:
                cgroup.kill()
                eventually(lambda cgroup=cgroup: not cgroup.populated())
            self.tree.remove(ref)
        self.tree.leave()


def fake_gpus() -> list[Gpu]:
    """As fakegpu was told."""
    found = []
    for spec in (PARAMETERS / "gpus").read_text().strip().split(","):
        pci, _, rest = spec.partition("=")
        found.append(Gpu(pci, *map(int, rest.split(":"))))
    return found


def eventually(condition: Callable[[], object]) -> None:
    """Wait until *condition* holds; how long that takes is not asserted beyond the patience."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


@pytest.fixture(name="eventually")
def eventually_fixture() -> Callable[[Callable[[], object]], None]:
    """`eventually`, for tests."""
    return eventually


@pytest.fixture
def rig() -> Iterator[Rig]:
    """The kernel and its GPUs, without a fault."""
    made = Rig()
    try:
        yield made
    finally:
        made.clean()


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wired]:
    """An agent that has tried and closed every region; what it closed is open after the module."""
    directory = tmp_path_factory.mktemp("agent")
    made = Wired(directory)
    closed(made)
    yield made
    made.stop()
    open_again(directory)


@pytest.fixture
def wired(rig: Rig, agent: Wired) -> Iterator[Wired]:
    """The module's agent; leases end with the test."""
    yield agent
    for lease in agent.built.ledger.live():
        agent.release(lease)
