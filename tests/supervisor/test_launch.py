"""How a supervised command starts, lives and ends, and what becomes of it when its supervisor does not."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from nodeagent.adapters.processes import stat_of
from nodeagent.adapters.supervisor import CommandFailed
from nodeagent.domain.errors import OutsideFault

from .conftest import LIMIT, USER, WAIT_SECONDS, Lab

pytestmark = [pytest.mark.cgroup2, pytest.mark.root]

ALLOC = 0xC0284B16
OVER = LIMIT + 4096


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def await_end(pid: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while (stat := stat_of(pid)) is not None and not stat.dead:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_command_is_the_users(lab: Lab):
    """It has the user's ids, groups, limits, mask, nice value and signals, and is in the lease's cgroup."""
    running = lab.start("/bin/sh", "-c", "umask; ulimit -n; echo $PATH; pwd; echo ready; read x")
    assert [running.line() for _ in range(5)] == ["0027", "256", "/usr/bin:/bin", "/", "ready"]
    status = status_of(running.pid)
    assert status["Uid"].split() == [str(USER)] * 4 == status["Gid"].split()
    assert status["Groups"].split() == ["7", str(USER)]
    assert (status["Seccomp"], status["NoNewPrivs"], status["CapEff"]) == ("2", "0", "0" * 16)
    classic = (1 << 31) - 1  # the C library keeps real-time signals of its own ignored in some callers
    assert int(status["SigIgn"], 16) & classic == 1 << (signal.SIGHUP - 1)
    assert status["Cpus_allowed_list"] == "0"
    assert os.getpriority(os.PRIO_PROCESS, running.pid) == 3
    assert Path(f"/proc/{running.pid}/oom_score_adj").read_text() == "100\n"
    assert running.pid in lab.cgroup.procs()


def test_the_directory_is_entered_with_the_users_rights(lab: Lab, tmp_path: Path):
    """A descriptor of a directory that the user may not enter does not lead in there."""
    tmp_path.chmod(0o700)
    directory = os.open(tmp_path, os.O_PATH)
    try:
        with pytest.raises(OutsideFault, match="cwd"):
            lab.start("/bin/true", instead={"cwd": directory})
    finally:
        os.close(directory)


def test_no_mount_of_private_ipc_shows_outside(built: Path):
    """Though all mounts of the node are shared, as systemd makes them, the command's /dev/shm is not."""
    script = '"$1" probe-ipc && grep -c "/dev/shm .* tmpfs gpulease " /proc/self/mountinfo'
    shared = ("unshare", "--mount", "--propagation", "shared", "sh", "-c", script)
    done = subprocess.run(
        [*shared, "sh", str(built / "gpulease-supervisor")], capture_output=True, text=True, check=False
    )
    assert done.stdout == "0\n", done.stderr


def test_nothing_of_root_is_handed_down(lab: Lab):
    """The command has three descriptors, and none of the agent's or the supervisor's."""
    running = lab.start("/bin/sh", "-c", "echo ready; read x")
    assert running.line() == "ready"
    assert sorted(one.name for one in Path(f"/proc/{running.pid}/fd").iterdir()) == ["0", "1", "2"]


def test_its_end_is_told(lab: Lab):
    """The report says the wait status: an exit code, or the signal that killed it."""
    assert lab.start("/bin/sh", "-c", "exit 7").end() == ([], 7 << 8)
    assert lab.start("/bin/sh", "-c", "kill -TERM $$").end() == ([], signal.SIGTERM)


def test_no_new_privileges_stay_so(lab: Lab):
    """A caller that gave up setuid programs has given them up for what is launched in its name."""
    running = lab.start("/bin/sh", "-c", "echo ready; read x", no_new_privileges=True)
    assert running.line() == "ready"
    assert status_of(running.pid)["NoNewPrivs"] == "1"


def test_a_command_that_cannot_start_is_said_to(lab: Lab):
    """What execve says comes back, also that the user may not, and nothing is left in the cgroup."""
    for command, number in (
        ("/no/such", errno.ENOENT),
        ("no-such-word", errno.ENOENT),
        ("/etc", errno.EACCES),
    ):
        with pytest.raises(CommandFailed) as failed:
            lab.start(command)
        assert failed.value.number == number
        assert str(failed.value) == f"{command}: {os.strerror(number)}"
    assert lab.cgroup.procs() == ()


def test_a_cgroup_that_is_gone_is_a_fault(lab: Lab, tmp_path: Path):
    """Without the lease's cgroup nothing starts, and the fault names the step."""
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        lab.cgroup = type("Gone", (), {"fileno": lambda self: directory})()
        with pytest.raises(OutsideFault, match="cgroup"):
            lab.start("/bin/true")
    finally:
        os.close(directory)


@pytest.mark.way_out(
    "the supervisor is killed", tier="supervised", outcome="every allocation fails, the program lives on"
)
def test_without_its_supervisor_nothing_is_allocated(lab: Lab, programs):
    """The supervisor killed, an allocation that would have fit fails by ENOSYS, and the program lives on."""
    running = lab.gpu(programs("static glibc"), f"raw:{ALLOC}:4096", "read", f"raw:{ALLOC}:4096", "foreign")
    assert running.line() == "raw=0"
    supervisor = running.supervisor()
    assert Path(f"/proc/{supervisor}/comm").read_text() == "gpulease-superv\n"
    os.kill(supervisor, signal.SIGKILL)
    await_end(supervisor)
    running.go_on()
    assert running.line() == "read=1"
    assert running.line() == f"raw={errno.ENOSYS}"
    assert running.line() == f"foreign={errno.ENOSYS}"


def test_it_is_not_the_agents_child(lab: Lab):
    """The supervisor is in a session of its own and nobody's child here: the agent may come and go."""
    running = lab.start("/bin/sh", "-c", "echo ready; read x")
    assert running.line() == "ready"
    supervisor = running.supervisor()
    assert os.getsid(supervisor) == supervisor != os.getsid(0)
    assert int(status_of(supervisor)["PPid"]) != os.getpid()


def test_it_stays_for_descendants_that_outlive_the_command(lab: Lab, programs):
    """A background process is held like the command was, and the supervisor ends with it."""
    program, kfd = programs("static musl"), lab.fake.kfd
    script = f"(sleep 0.3; {program} {kfd} {kfd} 4096 raw:{ALLOC}:{OVER} raw:{ALLOC}:4096) & echo $PPID"
    running = lab.start("/bin/sh", "-c", script)
    supervisor = int(running.line())
    assert os.read(running.report, 64) == b"exited 0\n"
    assert [running.line(), running.line()] == [f"raw={errno.ENOMEM}", "raw=0"]
    await_end(supervisor)


def test_a_wrapper_that_was_killed_ends_its_command(lab: Lab):
    """The reader of the report gone, the command gets SIGTERM."""
    running = lab.start("/bin/sh", "-c", "echo ready; sleep 60")
    assert running.line() == "ready"
    os.close(running.report)
    running.report = -1
    await_end(running.pid)


@pytest.mark.way_out(
    "signalling, tracing or reading the supervisor", tier="supervised", outcome="not allowed"
)
def test_users_cannot_touch_their_supervisor(lab: Lab, programs):
    """threat 23: there is no socket; a second user and the holder can neither signal, trace nor read it."""
    running = lab.start("/bin/sh", "-c", "echo ready; read x")
    assert running.line() == "ready"
    supervisor = running.supervisor()
    for uid in (USER, USER + 1):
        script = (
            f"kill -9 {supervisor} 2>/dev/null && echo killed; "
            f"cat /proc/{supervisor}/mem /proc/{supervisor}/environ 2>/dev/null && echo read; "
            f"ls /proc/{supervisor}/fd >/dev/null 2>&1 && echo listed; echo done"
        )
        assert lab.start("/bin/sh", "-c", script, uid=uid).end() == (["done"], 0)
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    assert not any("supervisor" in words[-1] for words in lines)


@pytest.mark.way_out(
    "a filter of the program's own before the supervisor's",
    tier="supervised",
    outcome="refused by the kernel",
)
def test_no_second_listener_can_be_put_before_it(lab: Lab):
    """threat 19: the kernel refuses a program's own filter with a listener, so it answers nothing itself."""
    script = (
        "import ctypes, struct\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "libc.prctl(38, 1, 0, 0, 0)\n"
        "code = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fff0000))\n"
        "program = struct.pack('HxxxxxxQ', 1, ctypes.addressof(code))\n"
        "print(libc.syscall(317, 1, 8, program), ctypes.get_errno())\n"
    )
    lines, _ = lab.start("/usr/bin/python3", "-c", script).end()
    assert lines == [f"-1 {errno.EBUSY}"]
