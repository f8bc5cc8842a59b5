"""A supervisor of containers: it takes listeners over by a socket, and answers for who is in the lease."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodeagent.adapters.cgroup_mount import find_mount
from nodeagent.adapters.processes import every_pid
from nodeagent.adapters.supervisor import Attendance
from nodeagent.domain.errors import OutsideFault

from .conftest import GPU, HERE, LEASE, LIMIT, USER, WAIT_SECONDS, Lab

pytestmark = [pytest.mark.cgroup2, pytest.mark.root]

ALLOC = 0xC0284B16
HALF, OVER = f"raw:{ALLOC}:{LIMIT // 2}", f"raw:{ALLOC}:{LIMIT + 4096}"
Start = Callable[..., "subprocess.Popen[str]"]


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def attending(path: Path) -> list[int]:
    """The pids of supervisors that listen at *path*, or did."""
    listening = {
        line.split()[6] for line in Path("/proc/net/unix").read_text().splitlines() if str(path) in line
    }
    found = []
    for pid in every_pid(Path("/proc")):
        try:
            links = {str(one.readlink()) for one in Path(f"/proc/{pid}/fd").iterdir()}
            named = Path(f"/proc/{pid}/comm").read_text() == "gpulease-superv\n"
        except OSError:
            continue
        if named and links & {f"socket:[{inode}]" for inode in listening}:
            found.append(pid)
    return found


def connected(supervisor: int) -> int:
    """How many sockets and listeners it has open, and anything that is not its own."""
    links = [str(one.readlink()) for one in Path(f"/proc/{supervisor}/fd").iterdir()]
    return sum("/proc" not in link for link in links)  # those of processes it keeps for speed


@pytest.fixture
def listener(lab: Lab, tmp_path: Path) -> Iterator[Path]:
    """Where a supervisor of the lease listens."""
    path = tmp_path / "seccomp"
    lab.supervisor.attend(Attendance(LEASE, (lab.device,), _path(lab), None, path))
    (supervisor,) = attending(path)
    process = os.pidfd_open(supervisor)
    yield path
    path.unlink(missing_ok=True)
    with contextlib.suppress(ProcessLookupError):  # it has ended, unless something is wrong with it
        signal.pidfd_send_signal(process, signal.SIGKILL)
    os.close(process)


def _path(lab: Lab) -> str:
    return lab.cgroup.ref.path


@pytest.fixture
def start(lab: Lab, listener: Path, programs: Callable[[str], Path]) -> Iterator[Start]:
    """Starts the static test program as a runtime does, in the lease's cgroup or where the test is."""
    started: list[subprocess.Popen[str]] = []

    def run(*steps: str, how: str = "well", inside: bool = True) -> subprocess.Popen[str]:
        render = str(lab.fake.render(lab.device.render_minor))
        words = [sys.executable, str(HERE / "handing.py"), str(listener), how]
        words += [str(programs("static musl")), str(lab.fake.kfd), render, str(GPU), *steps]
        script = 'echo $$ >"$0" && exec "$@"' if inside else 'exec "$@"'
        command = ["sh", "-c", script, str(_procs(lab)), *words]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def _procs(lab: Lab) -> Path:
    return Path(f"{find_mount()}{_path(lab)}/cgroup.procs")


def said(process: subprocess.Popen[str], given: str = "") -> list[int]:
    """What each further step said, when all are over; *given* is written to it."""
    return [int(line.partition("=")[2]) for line in process.communicate(given)[0].splitlines()]


def test_a_programs_limit_is_the_leases(start: Start) -> None:
    """What fits goes on, what does not is ENOMEM."""
    assert said(start(OVER, HALF, f"raw:{ALLOC}:{LIMIT}", f"raw:{ALLOC}:4096")) == [
        errno.ENOMEM,
        0,
        errno.ENOMEM,
        0,
    ]


def test_all_programs_share_it(start: Start) -> None:
    """Each has a listener of its own, and all have one limit."""
    first = start(HALF, "read")
    assert first.stdout and first.stdout.readline() == "raw=0\n"
    assert said(start(f"raw:{ALLOC}:{LIMIT}", f"raw:{ALLOC}:4096")) == [errno.ENOMEM, 0]


@pytest.mark.way_out("x32 in a container", tier="supervised", outcome="ENOSYS: it does not exist")
def test_x32_does_not_exist(start: Start) -> None:
    """Containers' filters let its ioctl come, whose addresses are not what the driver would read."""
    assert said(start("x32:4096", f"x32:{LIMIT + 4096}")) == [errno.ENOSYS, errno.ENOSYS]


def test_who_is_outside_is_not_answered_for(start: Start) -> None:
    """Whatever hands its listener over: what is not in the lease's cgroup gets nothing of it."""
    assert said(start(f"raw:{ALLOC}:4096", "foreign", inside=False)) == [errno.EPERM, errno.EPERM]
    assert said(start(f"raw:{ALLOC}:4096")) == [0]


def test_nothing_else_is_taken(listener: Path, start: Start) -> None:
    """No descriptor, two, or one that is no listener: it is closed, and others are served as before."""
    (supervisor,) = attending(listener)
    before = connected(supervisor)
    for sent in ([], [0], [0, 1], list(range(3)) * 5):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(listener))
            socket.send_fds(connection, [b"{" * 100], sent)
    assert said(start(f"raw:{ALLOC}:4096", how="twice")) == [errno.ENOSYS]
    assert said(start(f"raw:{ALLOC}:4096")) == [0]
    until(lambda: connected(supervisor) == before)


def test_who_connects_and_waits_holds_up_nobody(listener: Path, start: Start) -> None:
    """A runtime may connect long before it has a listener."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(listener))
        assert said(start(f"raw:{ALLOC}:4096")) == [0]


def test_root_alone_reaches_it(listener: Path) -> None:
    """A user who could name the socket may not connect."""
    for parent in listener.parents[:-2]:
        parent.chmod(0o755)
    script = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
    words = ["/usr/bin/python3", "-c", script, str(listener)]
    done = subprocess.run(
        words, user=USER, group=USER, extra_groups=[], capture_output=True, text=True, check=False
    )
    assert "PermissionError" in done.stderr


def test_it_ends_with_its_socket(lab: Lab, listener: Path) -> None:
    """A lease whose container never came leaves no supervisor behind."""
    (supervisor,) = attending(listener)
    listener.unlink()
    until(lambda: not Path(f"/proc/{supervisor}").exists())
    assert not lab.supervisor.attends(listener)


def test_it_answers_until_its_last_program_has_ended(listener: Path, start: Start) -> None:
    """The socket gone, nobody else comes in, and who runs is held as before."""
    (supervisor,) = attending(listener)
    process = start(f"raw:{ALLOC}:4096", "read", OVER, f"raw:{ALLOC}:4096")
    assert process.stdout and process.stdout.readline() == "raw=0\n"
    listener.unlink()
    until(lambda: not attending(listener))
    assert said(process, "!")[1:] == [errno.ENOMEM, 0]
    until(lambda: not Path(f"/proc/{supervisor}").exists())


def test_without_it_nothing_is_allocated(listener: Path, start: Start) -> None:
    """Killed, it takes all of its lease's programs' allocations along."""
    process = start(f"raw:{ALLOC}:4096", "read", f"raw:{ALLOC}:4096")
    assert process.stdout and process.stdout.readline() == "raw=0\n"
    (supervisor,) = attending(listener)
    os.kill(supervisor, signal.SIGKILL)
    until(lambda: not attending(listener))
    assert said(process, "!")[-1] == errno.ENOSYS


def test_a_second_call_finds_the_first(lab: Lab, listener: Path) -> None:
    """After a crash of the agent the effect is applied again: one supervisor serves the lease."""
    before = attending(listener)
    lab.supervisor.attend(Attendance(LEASE, (lab.device,), _path(lab), None, listener))
    assert attending(listener) == before != []


def test_a_socket_that_cannot_be_is_a_fault(lab: Lab, tmp_path: Path) -> None:
    """Its directory is gone, or its name too long for a socket: the fault names the step."""
    for path in (tmp_path / "gone/seccomp", tmp_path / ("x" * 120)):
        with pytest.raises(OutsideFault, match="socket"):
            lab.supervisor.attend(Attendance(LEASE, (lab.device,), _path(lab), None, path))
