"""The books stay right through kills, forks, threads, namespaces, and what a holder does to its own file."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import struct
import time
from pathlib import Path

import pytest

from .conftest import MIB, Node, usage_cell

pytestmark = pytest.mark.hook

LOCKS = 1 << 40
USER = 4321


def test_a_killed_process_leaves_nothing_charged(node: Node) -> None:
    """After SIGKILL another process of the lease gets what the dead one had."""
    node.lease(10 * MIB)
    dead, other = node.start(), node.start()
    dead("alloc(10 << 20)")
    dead.kill()
    assert other("alloc(10 << 20)") == 1
    assert node.charged() == node.kernel.used() == 10 * MIB
    assert node.denied() == 0


def test_a_surviving_fork_child_does_not_keep_the_dead_alive(node: Node) -> None:
    """A child that outlives its killed parent inherits neither its slot nor its charges."""
    node.lease(10 * MIB)
    parent, other = node.start(), node.start()
    parent("alloc(10 << 20)")
    child = parent("linger()")
    os.kill(parent.pid, signal.SIGKILL)
    parent.process.wait()
    try:
        assert Path(f"/proc/{child}").exists()
        assert other("alloc(10 << 20)") == 1
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.way_out(
    "fork, exec, a child that outlives its parent",
    tier="hook",
    outcome="each process is counted, against one limit",
)
def test_a_fork_child_is_counted_by_itself(node: Node) -> None:
    """A fork child starts with nothing charged, and shares the lease's limit."""
    node.lease(10 * MIB)
    program = node.start()
    program("alloc(6 << 20)")
    assert program("in_child('alloc(5 << 20)')") == "ENOMEM"
    assert program("in_child('alloc(4 << 20)')") == 1
    assert program("alloc(4 << 20)") == 2


def test_closing_every_descriptor_keeps_the_slot(node: Node) -> None:
    """A program that closes all its descriptors stays charged."""
    node.lease(10 * MIB)
    daemon, other = node.start(), node.start()
    daemon("alloc(10 << 20)")
    daemon("close_files()")
    assert other("alloc(4096)") == "ENOMEM"
    assert daemon("alloc(4096)") == "ENOMEM"


def test_exec_starts_anew(node: Node) -> None:
    """Memory goes with the address space, and so does the charge."""
    node.lease(10 * MIB)
    program, other = node.start(), node.start()
    program("alloc(10 << 20)")
    assert program("execute()") == "started"
    assert program("alloc(6 << 20)") == 1
    assert other("alloc(4 << 20)") == 1


def test_processes_in_other_pid_namespaces_count(node: Node) -> None:
    """Two processes that are both pid 1 of their namespace are two, alive or dead."""
    node.lease(10 * MIB)
    inside = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    one, two = node.start(*inside), node.start(*inside)
    assert [one.pid, two.pid] == [1, 1]
    one("alloc(6 << 20)")
    assert two("alloc(5 << 20)") == "ENOMEM"
    one.close()
    assert two("alloc(10 << 20)") == 1


def test_a_signal_handler_may_allocate(node: Node) -> None:
    """A handler that calls ioctl() amid allocations neither hangs nor loses count."""
    node.lease(64 * MIB)
    program = node.start()
    program("signal_storm(300)")
    assert node.charged() == node.kernel.used() == 0


@pytest.mark.parametrize("size", [0, 100, 4096, 8192 - 8, 1 << 20])
@pytest.mark.way_out(
    "truncating or growing the usage file", tier="hook", outcome="refused until it is whole again"
)
def test_a_file_of_another_size_grants_nothing(node: Node, size: int) -> None:
    """A usage file cut short or grown is refused without SIGBUS, and believed again once it is whole."""
    node.lease(10 * MIB)
    program = node.start()
    program("alloc(4 << 20)")
    whole = node.usage.read_bytes()
    os.truncate(node.usage, size)
    assert program("alloc(4096)") == "ENOMEM"
    assert program("available()") == 0
    assert node.start()("alloc(4096)") == "ENOMEM"
    node.usage.write_bytes(whole)
    assert program("alloc(4 << 20)") == 2
    assert node.charged() == 8 * MIB


@pytest.mark.way_out(
    "higher numbers of one's own in the usage file", tier="hook", outcome="more is refused, never granted"
)
def test_hostile_numbers_refuse_and_do_not_wrap(node: Node) -> None:
    """Whatever others write in the file, sums saturate: more is refused, never granted."""
    node.lease(10 * MIB)
    program = node.start()
    program("alloc(4 << 20)")
    with node.usage.open("r+b") as file:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, LOCKS + 1 + 9, 1, 0))
        file.seek(4096 + 9 * 8)
        file.write(struct.pack("<Q", 2**64 - 1))
        file.flush()
        assert program("alloc(4096)") == "ENOMEM"
        assert program("available()") == 0
    assert program("alloc(4096)") == 2


@pytest.mark.way_out(
    "lower numbers of one's own in the usage file",
    tier="hook",
    outcome="not held: what a process has is forgotten until its next request, and granted to others again",
)
def test_what_others_have_can_be_wiped_out(node: Node) -> None:
    """The holder may write its file, and a process knows of the others what stands there."""
    node.lease(10 * MIB)
    one, other = node.start(), node.start()
    one("alloc(10 << 20)")
    assert other("alloc(4096)") == "ENOMEM"
    with node.usage.open("r+b") as file:
        file.seek(4096)
        file.write(bytes(4096))
    assert other("alloc(10 << 20)") == 1
    one("alloc(4096)")
    assert other("alloc(4096)") == "ENOMEM"


def test_a_process_corrects_its_own_entry(node: Node) -> None:
    """A process knows itself what it has: its entry is right again at its next request."""
    node.lease(10 * MIB)
    program = node.start()
    program("alloc(4 << 20)")
    with node.usage.open("r+b") as file:
        file.seek(4096)
        file.write(bytes(4096))
    assert program("alloc(8 << 20)") == "ENOMEM"
    assert program("alloc(4 << 20)") == 2
    assert usage_cell(node.usage, 0) == 8 * MIB


def test_a_damaged_header_takes_no_newcomers(node: Node) -> None:
    """A file of another lease or version is not attached to."""
    node.lease(10 * MIB)
    with node.usage.open("r+b") as file:
        file.write(b"GPUWRONG")
    assert node.start()("alloc(4096)") == "ENOMEM"


def test_a_pipe_or_link_in_its_place_grants_nothing(node: Node) -> None:
    """A FIFO is not waited for and a link is not followed."""
    node.lease(10 * MIB)
    aside = node.usage.rename(node.usage.with_name("aside"))
    try:
        os.mkfifo(node.usage)
        assert node.start()("alloc(4096)") == "ENOMEM"
        node.usage.unlink()
        node.usage.symlink_to("aside")
        assert node.start()("alloc(4096)") == "ENOMEM"
    finally:
        node.usage.unlink()
        aside.unlink()


@pytest.mark.parametrize("strict", [True, False])
def test_a_missing_usage_file(node: Node, strict: bool) -> None:
    """A strict lease grants nothing; another counts each process alone, and says so once."""
    node.lease(10 * MIB, strict=strict)
    node.usage.unlink()
    program = node.start()
    assert program("alloc(6 << 20)") == ("ENOMEM" if strict else 1)
    assert program("alloc(6 << 20)") == "ENOMEM"
    said = program.close()
    assert said.count("gpulease hook:") == 1
    assert str(node.usage) in said


@pytest.mark.root
@pytest.mark.way_out("closing one's own usage file", tier="hook", outcome="refused, in every lease")
def test_a_file_that_its_holder_closed_grants_nothing(node: Node) -> None:
    """Its mode changed, no process would know of the others: that must not give each the whole slice."""
    node.lease(10 * MIB, strict=False, uid=USER)
    node.usage.chmod(0)
    assert node.start(user=USER)("alloc(4096)") == "ENOMEM"
    node.usage.chmod(0o600)
    assert node.start(user=USER)("alloc(10 << 20)") == 1
    assert node.start(user=USER + 1)("alloc(10 << 20)") == 1  # a second user's program is counted alone


@pytest.mark.way_out(
    "holding the usage file's lock",
    tier="hook",
    outcome="others are refused after a bounded wait, and served afterwards",
)
def test_a_foreign_lock_holds_nobody_for_long(node: Node) -> None:
    """While a program keeps the mutex others are refused after a bounded wait, and served when it lets go."""
    node.lease(10 * MIB)
    program = node.start()
    program("alloc(4096)")
    with node.usage.open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 1, LOCKS)
        assert program("alloc(4096)") == "ENOMEM"
    assert program("alloc(4096)") == 2


def test_readers_locks_hold_nobody(node: Node) -> None:
    """Locks on the bytes that exist, as any reader may take, are none of the hook's."""
    node.lease(10 * MIB)
    with node.usage.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        fcntl.lockf(file, fcntl.LOCK_EX, 8192, 0)
        assert node.start()("alloc(4096)") == 1


def test_a_file_size_limit_does_not_end_the_program(node: Node) -> None:
    """Under `ulimit -f 0` the kernel signals at the hook's writes: VRAM is refused, the program lives."""
    node.lease(10 * MIB)
    program = node.start()
    program("signal.signal(signal.SIGXFSZ, signal.SIG_DFL)")
    program("__import__('resource').setrlimit(1, (0, 2**63 - 1))")
    assert program("alloc(4096)") == "ENOMEM"
    program("__import__('resource').setrlimit(1, (2**63 - 1, 2**63 - 1))")
    assert program("alloc(4096)") == 1


def test_a_signal_that_the_program_holds_back_stays_its_own(node: Node) -> None:
    """Of a blocked SIGXFSZ the hook takes back what its own write sent, never one that was pending before."""
    node.lease(10 * MIB)
    program = node.start()
    program("bool(signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGXFSZ}))")
    program("__import__('resource').setrlimit(1, (0, 2**63 - 1))")
    for raised in (False, True):
        assert not raised or program("signal.raise_signal(signal.SIGXFSZ)") is None
        assert program("alloc(4096)") == "ENOMEM"
        assert program("signal.SIGXFSZ in signal.sigpending()") is raised


@pytest.mark.parametrize(
    "stderr",
    [
        pytest.param("os.close(ends[0])", id="closed"),
        pytest.param("os.set_blocking(ends[1], False) or fill(ends[1])", id="full"),
    ],
)
def test_what_the_hook_says_does_not_end_or_stop_the_program(node: Node, stderr: str) -> None:
    """Neither a closed nor a full pipe at stderr ends or stops a program that is told something."""
    node.lease(10 * MIB, strict=False)
    node.usage.unlink()
    program = node.start()
    program("signal.signal(signal.SIGPIPE, signal.SIG_DFL)")
    program("globals().update(ends=os.pipe()) or os.dup2(ends[1], 2)")
    program(f"{stderr} or os.set_blocking(ends[1], True) or os.close(ends[1])")
    assert program("alloc(4096)") == 1


def test_a_program_without_descriptors_is_served_when_it_has_some(node: Node) -> None:
    """Neither the lease nor the usage file can be opened then; that is not remembered."""
    node.lease(10 * MIB)
    program = node.start()
    program("opened('kfd')")
    for _ in range(2):
        program("__import__('resource').setrlimit(7, (4, 2048))")
        assert program("alloc(4096)") == "ENOMEM"
        program("__import__('resource').setrlimit(7, (1024, 2048))")
        assert program("alloc(4096)") > 0


def test_a_program_may_forbid_old_system_calls(node: Node) -> None:
    """Its filter knows what a C library calls today: no open(), stat() or readlink()."""
    node.lease(10 * MIB)
    program = node.start()
    program("opened('kfd') and opened('dri/renderD128')")
    program("forbid(2, 4, 89)")
    assert [program("alloc(4096)"), program("gem(4096)"), program("available()")] == [1, 1, 10 * MIB - 8192]


def test_a_full_table_refuses(node: Node) -> None:
    """Without a free slot there is no VRAM, and a slot that is let go serves again."""
    node.lease(10 * MIB)
    with node.usage.open("r+b") as file:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, LOCKS + 1, 512, 0))
        program = node.start()
        assert program("alloc(4096)") == "ENOMEM"
    assert program("alloc(4096)") == 1


def test_threads_lose_no_count(node: Node) -> None:
    """Eight threads that allocate and free leave the books at zero."""
    node.lease(16 * MIB)
    program = node.start()
    program("storm(200, 1 << 20)")
    assert node.charged() == node.kernel.used() == 0
    assert node.kernel.peak[0x1000] <= 16 * MIB


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(4, id="short"),
        pytest.param(60, id="long", marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
def test_a_storm_with_kills_stays_within_the_limit(node: Node, rounds: int) -> None:
    """By the kernel's count, while processes are killed, the lease comes to its limit and not over it."""
    limit = 40 * MIB
    node.lease(limit)
    chance = random.Random(7)
    programs = [node.start() for _ in range(3)]
    for program in programs:
        program.send("storm(1 << 30, 1 << 20)")
    for _ in range(rounds):
        time.sleep(0.1 + chance.random() * 0.4)
        victim = chance.randrange(3)
        programs[victim].kill()
        programs[victim] = node.start()
        programs[victim].send("storm(1 << 30, 1 << 20)")
    for _ in range(100):  # until a busy machine comes there, too
        if node.kernel.peak[0x1000] >= 0.95 * limit:
            break
        time.sleep(0.1)
    for program in programs:
        program.kill()
    assert 0.95 * limit <= node.kernel.peak[0x1000] <= limit
    survivor = node.start()
    assert survivor("until_free(40 << 20)") == 1
    survivor("free(1)")
    assert node.charged() == node.kernel.used() == 0
