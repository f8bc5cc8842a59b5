"""Callers whose files lie on a file system that does not answer: it stalls their own command, nobody else."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path

import pytest

from nodeagent.adapters.supervisor import Offered
from nodeagent.domain.errors import InvalidField, NotAllowed
from tests.fakekfd.fuse import FLUSH, GETATTR, OPEN, Attr, Files, Mount

from .conftest import GPU, USER, Lab
from .test_launch import await_end

pytestmark = [pytest.mark.cgroup2, pytest.mark.root]

ALLOC = 0xC0284B16
NUMBER = 200  # of the descriptor that the caller opens itself
HOLDER = (
    "import os, sys, time; os.dup2(os.open(sys.argv[1], os.O_RDWR), int(sys.argv[2])); print(1, flush=True); "
    "time.sleep(60)"
)


class Tree(Files):
    """A program, a directory and a file that everybody may write."""

    def attr(self, path: str) -> Attr | None:
        directory, program, file = stat.S_IFDIR | 0o755, stat.S_IFREG | 0o755, stat.S_IFREG | 0o666
        modes = {"": directory, "directory": directory, "program": program, "file": file}
        return Attr(modes[path]) if path in modes else None


class Stalling(Mount):
    """Never answers requests of the kinds in *silent*."""

    silent: frozenset[int] = frozenset()

    def _handle(self, opcode: int, unique: int, number: int, tid: int, body: bytes) -> bytes | None:
        if opcode in self.silent:
            return None
        return super()._handle(opcode, unique, number, tid, body)

    @contextmanager
    def holder(self, offered: Offered, uid: int) -> Iterator[int]:
        """A caller that has its own descriptor NUMBER of the file, whose closing is not answered."""
        words = ["/usr/bin/python3", "-c", HOLDER, str(self.where / "file"), str(NUMBER)]
        passed = [number for number in astuple(offered) if number != NUMBER]
        with subprocess.Popen(
            words, pass_fds=passed, stdout=subprocess.PIPE, user=uid, group=uid, extra_groups=[]
        ) as process:
            assert process.stdout is not None and process.stdout.readline() == b"1\n"
            self.silent = frozenset({FLUSH})
            try:
                yield process.pid
            finally:
                self.silent = frozenset()  # what waits by now waits on
                process.kill()


@pytest.fixture
def mount(lab: Lab) -> Iterator[Stalling]:
    """The mount; whoever still waits for it is let go at the end."""
    with tempfile.TemporaryDirectory(prefix="stalling-") as directory:
        Path(directory).chmod(0o755)
        mounted = Stalling(Tree(), Path(directory))
        yield mounted
        mounted.close()


def runs(lab: Lab) -> bool:
    """Whether another command starts and ends as ever."""
    return lab.start("/bin/echo", "up").end() == (["up"], 0)


@pytest.mark.parametrize(
    ("role", "fault"), [("command", NotAllowed), ("report", InvalidField), ("cwd", NotAllowed)]
)
def test_a_descriptor_that_cannot_be_closed_is_not_the_agents(lab: Lab, mount: Stalling, role, fault):
    """What is no memory file, pipe or directory is refused, and somebody else than the agent waits for it."""
    with pytest.raises(fault):
        lab.start("/bin/true", caller=mount.holder, instead={role: NUMBER})
    assert runs(lab)


def test_output_that_cannot_be_closed_stalls_the_command_alone(lab: Lab, mount: Stalling):
    """The command starts, and its own end waits for its own file system."""
    assert lab.start("/bin/true", caller=mount.holder, instead={"stdout": NUMBER}).pid
    assert runs(lab)


def test_a_program_that_cannot_be_read_does_not_start(lab: Lab, mount: Stalling):
    """The launch is given up in time, with the likely cause, and others start meanwhile."""
    mount.silent = frozenset({OPEN})
    with pytest.raises(NotAllowed, match="does not answer"):
        lab.start(str(mount.where / "program"))
    assert runs(lab)


def test_a_directory_that_cannot_be_entered_does_not_stall_the_launch(lab: Lab, mount: Stalling):
    """So it is with the directory that the command would run in."""
    directory = os.open(mount.where / "directory", os.O_PATH)
    mount.silent = frozenset({GETATTR})
    try:
        with pytest.raises(NotAllowed, match="does not answer"):
            lab.start("/bin/true", instead={"cwd": directory})
    finally:
        os.close(directory)
    assert runs(lab)


@pytest.mark.parametrize("private_ipc", [False, True])
def test_a_users_own_file_system_may_be_the_directory(lab: Lab, private_ipc: bool):
    """Root may not look in there; the command starts in it all the same, and knows where it is."""
    where = Path(tempfile.mkdtemp(prefix="own-"))
    where.chmod(0o755)
    mounted = Mount(Tree(), where, owner=USER)
    directory = os.open(where, os.O_PATH)
    try:
        with pytest.raises(PermissionError):
            list(where.iterdir())
        started = lab.start("/bin/pwd", instead={"cwd": directory}, private_ipc=private_ipc)
        assert started.end() == ([str(where)], 0)
    finally:
        os.close(directory)
        mounted.close()
        where.rmdir()


def test_an_ioctl_on_a_file_that_does_not_answer_stalls_no_other(lab: Lab, mount: Stalling, programs):
    """The supervisor finds out what a descriptor leads to without asking its file system."""
    words = (str(programs("static musl")), str(lab.fake.kfd), str(mount.where / "file"), str(GPU))
    running = lab.start(*words, "foreign", "read", "gem:4096", f"raw:{ALLOC}:4096")
    assert running.line() == f"foreign={errno.ENOTTY}"  # the files are open
    mount.silent = frozenset({GETATTR})
    running.go_on()
    assert [running.line() for _ in range(3)] == ["read=1", f"gem={errno.ENOTTY}", "raw=0"]


def test_a_report_that_nobody_reads_holds_up_nobody(lab: Lab):
    """The pipe full, the supervisor ends with its command all the same."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        with pytest.raises(BlockingIOError):
            while True:
                os.write(writing, bytes(4096))
        os.set_blocking(writing, True)
        running = lab.start("/bin/sh", "-c", "read x", instead={"report": writing})
        supervisor = running.supervisor()
        running.go_on()
        os.close(running.stdin)
        await_end(supervisor)
    finally:
        os.close(reading)
        os.close(writing)
