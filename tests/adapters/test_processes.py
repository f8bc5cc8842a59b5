"""Who a process is, and whether it still is."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from nodeagent.adapters import processes

TAIL = " ".join(["S", "1", *["0"] * 15, "3", "0", "4242", *["0"] * 30])


def proc_with(tmp_path: Path, pid: int, **files: str) -> Path:
    directory = tmp_path / str(pid)
    directory.mkdir()
    for name, text in files.items():
        (directory / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("name", ["plain", "two words", "a) S 1 (b", ")", "new\nline) Z"])
def test_start_time_is_found_whatever_the_command_calls_itself(tmp_path: Path, name: str):
    """A command name with blanks and parentheses does not shift the fields."""
    proc = proc_with(tmp_path, 7, stat=f"7 ({name}) {TAIL}\n")
    stat = processes.stat_of(7, proc)
    assert stat == processes.ProcessStat(pid=7, state="S", threads=3, start_time=4242)


def test_a_cut_stat_line_is_no_process(tmp_path: Path):
    """A line without all fields tells nothing."""
    assert processes.stat_of(7, proc_with(tmp_path, 7, stat="7 (x) S 1")) is None


def test_a_later_process_of_the_same_pid_is_another(tmp_path: Path):
    """A pid that was given again is not alive under the old start time."""
    proc = proc_with(tmp_path, 7, stat=f"7 (x) {TAIL}")
    assert processes.alive(7, 4242, proc)
    assert not processes.alive(7, 4241, proc)


def test_a_zombie_is_not_alive(children):
    """A process that ended and was not reaped holds nothing any more."""
    pid = children.fork(lambda: signal.pause())
    start = processes.start_time_of(pid)
    assert start is not None
    assert processes.alive(pid, start)
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert not processes.alive(pid, start)
    assert processes.start_time_of(pid) is None


def test_a_leader_that_ended_before_its_threads_is_alive(tmp_path: Path):
    """A zombie leader with running threads is a living process."""
    tail = TAIL.replace("S", "Z", 1)
    assert processes.alive(7, 4242, proc_with(tmp_path, 7, stat=f"7 (x) {tail}"))


def test_a_process_that_never_was_has_nothing():
    """Questions about no process are answered with None, not with an error."""
    gone = 2**22 + 1
    assert processes.uids_of(gone) is None
    assert processes.start_time_of(gone) is None
    assert not processes.leads_its_group(gone)
    assert processes.pidfd_open(gone) is None


@pytest.mark.parametrize("pid", [0, -1])
def test_no_pidfd_of_no_process(pid: int):
    """Zero and negative pids mean groups to the kernel and nobody to the agent."""
    assert processes.pidfd_open(pid) is None


def test_all_four_uids_are_told(tmp_path: Path):
    """Real, effective, saved and file system uid come in this order."""
    proc = proc_with(tmp_path, 7, status="Name:\tx\nTgid:\t7\nUid:\t1\t2\t3\t4\n")
    assert processes.uids_of(7, proc) == (1, 2, 3, 4)


def test_a_thread_is_no_process():
    """A thread's id has a directory in /proc, too, and does not lead."""
    ready, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (ready.set(), done.wait()))
    thread.start()
    ready.wait()
    try:
        assert processes.leads_its_group(os.getpid())
        assert not processes.leads_its_group(thread.native_id or 0)
    finally:
        done.set()
        thread.join()


def test_a_signal_reaches_only_the_process_that_was_opened(children):
    """Signals go by pidfd: after the end they reach nobody, whoever has the pid."""
    pid = children.fork(lambda: signal.pause())
    pidfd = processes.pidfd_open(pid)
    assert pidfd is not None
    try:
        assert processes.pidfd_alive(pidfd)
        assert processes.send_signal(pidfd, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert not processes.pidfd_alive(pidfd)
        children.end(pid)
        assert not processes.send_signal(pidfd, signal.SIGKILL)
    finally:
        os.close(pidfd)


def test_gpu_use_is_what_the_kernel_driver_lists(tmp_path: Path):
    """A process that opened /dev/kfd has a directory by its pid."""
    (tmp_path / "41").mkdir()
    assert processes.gpu_in_use(41, tmp_path)
    assert not processes.gpu_in_use(42, tmp_path)
    assert not processes.gpu_in_use(41, tmp_path / "no-driver")
