"""A lease's cgroup, a fake KFD underneath, and programs that the real supervisor starts."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from gpulease.supervised import sealed
from nodeagent.adapters.cgroup import CgroupTree, OpenCgroup, nest_below
from nodeagent.adapters.cgroup_mount import find_mount
from nodeagent.adapters.hook_format import HookDevice
from nodeagent.adapters.inheritance import Inherited
from nodeagent.adapters.supervisor import Launch, Offered, Supervisor
from nodeagent.domain.cuset import CuSet
from nodeagent.hook import build
from tests.fakekfd.fuse_kfd import FakeKfd, fake_kfd, usable

HERE = Path(__file__).parent
SOURCES = HERE.parent.parent / "nodeagent" / "hook"
LEASE = 7
USER = 54_321
GPU = 4096
MINOR = 128
LIMIT = 1 << 30
WAIT_SECONDS = 20
KINDS = {
    "static glibc": ("gcc", "-static", "-pthread"),
    "static musl": ("musl-gcc", "-static"),
    "dynamic": ("gcc", "-pthread"),
}


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory that every user can enter, with the supervisor and the programs."""
    directory = Path("/tmp") / f"gpulease-test-{secrets.token_hex(6)}"
    directory.mkdir(mode=0o755)
    if why := build.unbuildable():
        pytest.skip(why)
    target = next(one for one in build.TARGETS if one.name == "gpulease-supervisor")
    assert build.compile_target(target, SOURCES, directory) is None
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def programs(built: Path) -> Callable[[str], Path]:
    """The program of one kind, compiled once."""

    def program(kind: str) -> Path:
        words = KINDS[kind]
        made = built / kind.replace(" ", "-")
        if shutil.which(words[0]) is None:
            pytest.skip(f"{words[0]} is not installed")
        if not made.exists():
            subprocess.run([*words, "-O1", "-o", str(made), str(HERE / "gpu.c")], check=True)
        return made

    return program


@pytest.fixture
def fake() -> Iterator[FakeKfd]:
    """A driver for two GPUs of 8 GiB."""
    if why := usable():
        pytest.skip(why)
    from tests.fakekfd.driver import Gpu

    with fake_kfd([Gpu(GPU, MINOR, 8 << 30, 8 << 30), Gpu(GPU + 1, MINOR + 1, 8 << 30, 8 << 30)]) as running:
        yield running


@pytest.fixture
def cgroup() -> Iterator[OpenCgroup]:
    """The lease's cgroup; whatever runs in it is killed after the test."""
    mount = find_mount()
    if mount is None:
        pytest.skip("needs cgroup2")
    tree = CgroupTree(mount, f"gpulease_test{secrets.token_hex(6)}.slice")
    if why := tree.writable():
        pytest.skip(why)
    parent = nest_below(tree.cgroup_of(os.getpid()))
    with tree.open(tree.create(LEASE, parent)) as opened:
        yield opened
        opened.kill()
        while opened.populated():
            time.sleep(0.01)
        opened.remove()
    with suppress(OSError):
        Path(f"{mount}{tree.instance}").rmdir()


@dataclass
class Running:
    """A command under a supervisor of its own. *pid* is the command's."""

    pid: int
    stdin: int
    stdout: int
    report: int

    def supervisor(self) -> int:
        """The supervisor's pid: the command's parent."""
        return int(Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[1])

    def line(self) -> str:
        """The next line that the command prints."""
        text = b""
        while not text.endswith(b"\n"):
            part = os.read(self.stdout, 1)
            if not part:
                break
            text += part
        return text.decode().strip()

    def end(self) -> tuple[list[str], int]:
        """All further lines, and the wait status."""
        lines = []
        while line := self.line():
            lines.append(line)
        report = os.read(self.report, 64).decode().split()
        return lines, int(report[1]) if report else -1

    def go_on(self) -> None:
        os.write(self.stdin, b"!")

    def close(self) -> None:
        for descriptor in (self.stdin, self.stdout, self.report):
            with suppress(OSError):
                os.close(descriptor)


@contextmanager
def offering(offered: Offered, uid: int) -> Iterator[int]:
    """The pid of a process of *uid* that has our descriptors by the same numbers, while inside."""
    ids: dict[str, Any] = {"user": uid, "group": uid, "extra_groups": []} if uid else {}
    with subprocess.Popen(["/bin/sleep", "60"], pass_fds=astuple(offered), **ids) as process:
        try:
            yield process.pid
        finally:
            process.kill()


Caller = Callable[[Offered, int], AbstractContextManager[int]]


@dataclass
class Lab:
    """Starts commands in the lease."""

    supervisor: Supervisor
    cgroup: OpenCgroup
    fake: FakeKfd
    device: HookDevice
    started: list[Running] = field(default_factory=list)

    def start(
        self,
        *argv: str,
        uid: int = USER,
        caller: Caller | None = None,
        instead: dict[str, int] | None = None,
        private_ipc: bool = False,
        **inherited: Any,
    ) -> Running:
        """Start *argv* as *uid* with one limited device; the caller offers pipes, or what is *instead*."""
        stdin, stdin_end = os.pipe()
        stdout_end, stdout = os.pipe()
        report_end, report = os.pipe()
        command, cwd = sealed(argv, {"PATH": "/usr/bin:/bin"}), os.open("/", os.O_PATH)
        offered = replace(Offered(command, stdin, stdout, stdout, cwd, report), **(instead or {}))
        running = Running(0, stdin_end, stdout_end, report_end)
        self.started.append(running)
        try:
            with (caller or offering)(offered, uid) as pid:
                running.pid = self.launch(pid, offered, uid, private_ipc, **inherited)
        finally:
            for descriptor in (command, stdin, stdout, report, cwd):
                os.close(descriptor)
        return running

    def launch(
        self, caller: int, offered: Offered, uid: int, private_ipc: bool = False, **inherited: Any
    ) -> int:
        """Start what the process *caller* of *uid* offers; the command's pid."""
        pidfd = os.pidfd_open(caller)
        try:
            return self.supervisor.launch(
                Launch(
                    lease=LEASE,
                    devices=(self.device,),
                    cgroup=self.cgroup.fileno(),
                    home=None,
                    peer=pidfd,
                    peer_pid=caller,
                    offered=offered,
                    uid=uid,
                    gid=uid,
                    groups=(uid, 7),
                    inherited=Inherited(**{**DEFAULTS, **inherited}),
                    private_ipc=private_ipc,
                )
            )
        finally:
            os.close(pidfd)

    def gpu(self, program: Path, *steps: str, **inherited: Any) -> Running:
        """Start the test program with *steps*."""
        render = str(self.fake.render(self.device.render_minor))
        return self.start(str(program), str(self.fake.kfd), render, str(GPU), *steps, **inherited)


DEFAULTS: dict[str, Any] = {
    "umask": 0o027,
    "nice": 3,
    "oom_score_adj": 100,
    "no_new_privileges": False,
    "ignored_signals": 1 << (signal.SIGHUP - 1),
    "cpus": frozenset({0}),
    "limits": {7: (256, 512)},
}


@pytest.fixture
def lab(built: Path, fake: FakeKfd, cgroup: OpenCgroup) -> Iterator[Lab]:
    """A lease of 1 GiB and CUs 8 to 15 of the first GPU."""
    supervisor = Supervisor(
        built / "gpulease-supervisor",
        kfd=fake.kfd,
        kfd_processes=fake.proc,
        dri=fake.directory / "dri",
    )
    if why := supervisor.unavailable():
        pytest.skip(why)
    device = HookDevice(GPU, MINOR, LIMIT, 104, 1, CuSet.parse("8-15"))
    made = Lab(supervisor, cgroup, fake, device)
    yield made
    for running in made.started:
        running.close()
