"""A node for the hook: the fake kernel's device files, the lease's files, programs that have the hook loaded.

Each test has a mount namespace of its own with /dev/kfd, /etc and /run/nodeagent as on a real node.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nodeagent.adapters.hook_files import LIBRARY, HookFiles
from nodeagent.adapters.hook_format import HookDevice
from nodeagent.domain.cuset import CuSet

from .fake_kernel import FakeKernel

HERE = Path(__file__).parent
LEASE = 7
MIB = 1 << 20
SCRIPT = """
set -e
mount --make-rprivate /
mkdir -p "$1/dev" "$1/up" "$1/work" && mount -t tmpfs none "$1/dev"
for name in null zero full random urandom tty ptmx; do
    touch "$1/dev/$name" && mount --bind /dev/$name "$1/dev/$name"
done
mkdir "$1/dev/dri" "$1/dev/shm" && chmod 1777 "$1/dev/shm"
touch "$1/dev/kfd" "$1/dev/dri/renderD128" "$1/dev/dri/renderD129"
mount --bind "$1/fuse/kfd" "$1/dev/kfd"
for minor in 128 129; do mount --bind "$1/fuse/renderD$minor" "$1/dev/dri/renderD$minor"; done
mount --rbind "$1/dev" /dev
mount -t tmpfs none "$1/up" && mkdir "$1/up/etc" "$1/up/work"
mount -t overlay none -o "lowerdir=/etc,upperdir=$1/up/etc,workdir=$1/up/work" /etc
mount -t tmpfs none /run && mkdir -p /run/nodeagent/hook && mount --rbind "$1/hook" /run/nodeagent/hook
echo ready
exec sleep infinity
"""


@dataclass
class Program:
    """`gpu.py` running somewhere; call it with an expression."""

    process: subprocess.Popen[str]
    said: str | None = None

    def __call__(self, expression: str) -> Any:
        self.send(expression)
        return self.answer()

    def send(self, expression: str) -> None:
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        return json.loads(line)

    @property
    def pid(self) -> int:
        """Of the program itself, behind nsenter and the like."""
        return self("os.getpid()")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> str:
        """End it, if it runs; what it wrote on stderr."""
        if self.said is not None:
            return self.said
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        with self.process.stdout, self.process.stderr:
            self.said = self.process.stderr.read()
        return self.said


@dataclass
class Node:
    """One lease on one fake node."""

    directory: Path
    kernel: FakeKernel
    files: HookFiles
    init: subprocess.Popen[str]
    devices: list[HookDevice] = field(default_factory=list)
    started: list[Program] = field(default_factory=list)

    @property
    def root(self) -> Path:
        """The namespace's root directory, seen from outside."""
        return Path(f"/proc/{self.init.pid}/root")

    @property
    def fixed(self) -> Path:
        return self.root / "etc/gpulease/limits"

    @property
    def usage(self) -> Path:
        return self.files.usage_path(LEASE)

    def lease(
        self,
        *limits: int,
        strict: bool = True,
        uid: int = 0,
        cus: Any = (),
        unit: int = 1,
        level: int | None = None,
    ) -> None:
        """Make lease 7's files with these bytes by device, known to all programs by the fixed file."""
        self.devices = [
            HookDevice(gpu, minor, limit, 128 if cus else 0, unit, CuSet.of(cus), level)
            for limit, gpu, minor in zip(limits, (0x1000, 0x2000), (128, 129), strict=False)
        ]
        self.write(strict=strict, uid=uid)

    def write(self, *, strict: bool = True, uid: int = 0) -> None:
        """Write what `devices` says."""
        made = self.files.prepare(LEASE, uid, self.devices, strict=strict)
        self.fixed.parent.mkdir(exist_ok=True)
        self.fixed.write_bytes(made.read_bytes())
        self.fixed.chmod(0o444)

    def charged(self, device: int = 0) -> int:
        return self.files.usage(LEASE, len(self.devices)).used_bytes[device]

    def denied(self) -> int:
        return self.files.usage(LEASE, len(self.devices)).denied

    def command(self, *words: str, **options: Any) -> list[str]:
        """The words as run in this node's mounts."""
        return ["nsenter", f"--mount=/proc/{self.init.pid}/ns/mnt", "--", *words]

    def start(
        self, *before: str, preload: bool = True, env: dict[str, str] | None = None, user: int | None = None
    ) -> Program:
        """`gpu.py`, behind the words *before*."""
        own = [f"LD_PRELOAD={self.library}"] if preload else []
        who = [] if user is None else ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        words = [*who, *before, "env", *own, *(f"{k}={v}" for k, v in (env or {}).items())]
        process = subprocess.Popen(
            self.command(*words, "/usr/bin/python3", str(self.directory / "gpu.py")),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(Program(process))
        return self.started[-1]

    @property
    def library(self) -> Path:
        return self.directory / LIBRARY.name


def unusable() -> str | None:
    """Why these tests cannot run here."""
    if os.geteuid() != 0:
        return "needs uid 0 to mount FUSE and make mount namespaces"
    if not LIBRARY.is_file():
        return f"{LIBRARY} was not built"
    if not Path("/dev/fuse").exists():
        return "needs /dev/fuse"
    return None


@pytest.fixture
def make_node() -> Iterator[Callable[[], Node]]:
    """Makes nodes; all is taken away after the test."""
    if reason := unusable():
        pytest.skip(reason)
    with contextlib.ExitStack() as stack:

        def make() -> Node:
            return stack.enter_context(running())

        yield make


@pytest.fixture
def node(make_node: Callable[[], Node]) -> Node:
    """One node."""
    return make_node()


@contextlib.contextmanager
def running() -> Iterator[Node]:
    directory = Path(tempfile.mkdtemp(prefix="hook-"))
    directory.chmod(0o755)
    for name in ("fuse", "hook"):
        (directory / name).mkdir(mode=0o711)
    shutil.copy(HERE / "gpu.py", directory)
    shutil.copy(LIBRARY, directory)
    kernel = FakeKernel(directory / "fuse")
    files = HookFiles("gpulease", root=directory / "hook", library=directory / LIBRARY.name)
    assert files.unavailable() is None
    init = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", SCRIPT, "sh", str(directory)], stdout=subprocess.PIPE, text=True
    )
    node = Node(directory, kernel, files, init)
    try:
        assert init.stdout.readline() == "ready\n"
        yield node
    finally:
        with contextlib.ExitStack() as last:  # each of these, whatever a failed test left
            last.callback(shutil.rmtree, directory, ignore_errors=True)
            for space in (directory / "hook/usage").glob("*"):
                last.callback(subprocess.run, ["umount", "-l", str(space)], check=False)
            last.callback(kernel.close)
            last.callback(init.stdout.close)
            last.callback(init.wait)
            last.callback(init.kill)
            for program in node.started:
                last.callback(program.close)


def usage_cell(path: Path, slot: int, device: int = 0) -> int:
    """What the usage file says in one cell."""
    with path.open("rb") as file:
        file.seek(4096 + (device * 512 + slot) * 8)
        return struct.unpack("<Q", file.read(8))[0]


@pytest.fixture
def cgroup2() -> Path:
    """The cgroup2 mount."""
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        left, _, right = line.partition(" - ")
        if right.split()[0] == "cgroup2":
            return Path(left.split()[4])
    pytest.skip("needs a cgroup2 mount")
