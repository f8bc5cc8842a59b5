"""The end of a lease on a real kernel: proved, or in quarantine with what is in the way; never a guess."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeagent.domain.lease import Lease, LeaseState, SliceState
from tests.rig.conftest import Holder, Rig
from tests.rig.machine import hide_processes
from tests.rig.releasing import TERMS
from tests.rig.wired import Wired, path_of

pytestmark = pytest.mark.rig

MIB, GIB = 1 << 20, 1 << 30
ROOT = Path(__file__).parents[2]
# Every bad habit at once: children in sessions of their own, without parents, deaf to SIGTERM, with memory
# that nobody frees.
WORKLOAD = """
import ctypes, os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
node = os.open(sys.argv[1], os.O_RDWR)
os.write(node, b"alloc 16M")
libc = ctypes.CDLL(None)
libc.shmget(0, 4096, 0o600 | 0o1000)
with open(f"/dev/shm/workload-{os.getpid()}", "w") as left:
    left.write("left")
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    child = os.open(sys.argv[1], os.O_RDWR)
    os.write(child, b"alloc 8M")
print("up", flush=True)
time.sleep(3600)
"""


class Ending:
    """One agent with a lease to be ended, and a neighbour on the same device that must not notice."""

    def __init__(self, rig: Rig, directory: Path) -> None:
        self.rig = rig
        self.directory = directory
        self.agent = Wired(directory, release=TERMS, enabled=False)
        self.lease, self.neighbour = self.agent.grant(GIB), self.agent.grant(GIB)
        self.gpu = next(one for one in rig.gpus if one.region in self.agent.regions(self.lease))
        self.witness = rig.holder(self.gpu, path_of(self.neighbour))
        assert self.witness.do("alloc 16M") == "ok"

    def holder(self) -> Holder:
        """A process in the lease with 16 MiB."""
        holder = self.rig.holder(self.gpu, path_of(self.lease))
        assert holder.do("alloc 16M") == "ok"
        return holder

    def begin(self, *, killed: bool) -> None:
        """Begin to release the lease; *killed*: the agent is killed in the middle of it, and starts anew."""
        if not killed:
            self.agent.begin_release(self.lease.id)
            return
        self.agent.stop()
        words = [sys.executable, "-m", "tests.rig.releasing", str(self.directory), str(self.lease.id)]
        with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as dying:
            assert dying.stdout is not None
            assert "begun\n" in dying.stdout  # after what it logs
            dying.kill()
        hide_processes(self.directory / "state/machine")
        self.agent = Wired(self.directory, release=TERMS, enabled=False)

    def state(self) -> LeaseState:
        return self.now().state

    def now(self) -> Lease:
        found = self.agent.built.ledger.lease(self.lease.id)
        assert found is not None
        return found

    def in_the_way(self) -> dict[str, Any]:
        """What the journal says was found when a step was given up."""
        told = [one.evidence or {} for one in self.agent.built.ledger.effects(self.lease.id)]
        return next(evidence["in_the_way"] for evidence in told if "in_the_way" in evidence)

    def clear(self) -> None:
        """As `nodeagent clear` does."""
        self.agent.clear(self.lease.id)

    def check_neighbour(self) -> None:
        """Its lease is active, its process lives, and it allocates as before."""
        found = self.agent.built.ledger.lease(self.neighbour.id)
        assert found is not None
        assert found.state is LeaseState.ACTIVE
        assert self.witness.do("alloc 1M") == "ok"


@pytest.fixture
def ending(rig: Rig, tmp_path: Path) -> Iterator[Ending]:
    made = Ending(rig, tmp_path)
    yield made
    rig.fault(hang="never", free_delay_ms=0)
    made.witness.end()
    for lease in (made.lease, made.neighbour):
        made.agent.release(lease)
    made.agent.stop()


killed = pytest.mark.parametrize("killed", [False, True], ids=["", "agent killed"])


@killed
def test_every_bad_habit_ends_in_a_proved_release(
    ending: Ending, eventually: Callable[..., None], killed: bool
) -> None:
    """Forks, orphans and sessions that ignore SIGTERM are gone, with their VRAM, and the slice is free."""
    words = [sys.executable, "-ISc", WORKLOAD, str(ending.gpu.node)]
    enter = f'echo $$ > {path_of(ending.lease)}/cgroup.procs && exec "$@"'
    with subprocess.Popen(["sh", "-c", enter, "sh", *words], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        ending.begin(killed=killed)
        eventually(lambda: ending.state() is LeaseState.RELEASED)
        assert child.wait(60) == -9
    assert not path_of(ending.lease).exists()
    ending.check_neighbour()
    Path(f"/dev/shm/workload-{child.pid}").unlink(missing_ok=True)


@killed
def test_memory_that_comes_back_late_is_waited_for(
    ending: Ending, eventually: Callable[..., None], killed: bool
) -> None:
    """Released when it is back, not before, and not quarantined."""
    ending.rig.fault(free_delay_ms=3000)
    ending.holder()
    ending.begin(killed=killed)
    eventually(lambda: ending.state() is not LeaseState.RELEASING)
    assert ending.state() is LeaseState.RELEASED
    ending.check_neighbour()


@killed
def test_memory_that_never_comes_back_is_quarantined(
    ending: Ending, eventually: Callable[..., None], killed: bool
) -> None:
    """The slice stays out of the pool with the bytes that are charged as evidence, until they are back."""
    ending.rig.fault(free_delay_ms=-1)
    ending.holder()
    ending.begin(killed=killed)
    eventually(lambda: ending.state() is LeaseState.FAILED)
    assert [one.state for one in ending.now().slices] == [SliceState.QUARANTINED]
    assert ending.in_the_way()["dmem_current"] == {ending.gpu.region: 16 * MIB}
    ending.check_neighbour()
    ending.rig.fault(free_delay_ms=0)
    eventually(lambda: ending.clear() or not ending.agent.built.ledger.quarantined())


# Opens the card in the lease, and posts the descriptor into the queue of a socket that nobody ever reads.
IN_FLIGHT = """
import array, os, socket, sys, time
kept, sent = socket.socketpair()
if os.fork() == 0:
    with open(sys.argv[2], "w") as procs:
        procs.write(str(os.getpid()))
    node = os.open(sys.argv[1], os.O_RDWR)
    os.write(node, b"alloc 16M")
    sent.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [node]))])
    os._exit(0)
os.wait()
print("up", flush=True)
sys.stdin.read()
"""


def test_memory_behind_a_descriptor_in_flight_is_quarantined(
    ending: Ending, eventually: Callable[..., None]
) -> None:
    """threat 17: nobody has the card open, and its memory stays charged; clean when the socket is gone."""
    procs = f"{path_of(ending.lease)}/cgroup.procs"
    words = [sys.executable, "-ISc", IN_FLIGHT, str(ending.gpu.node), procs]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        ending.begin(killed=False)
        eventually(lambda: ending.state() is LeaseState.FAILED)
        found = ending.in_the_way()
        assert found["dmem_current"] == {ending.gpu.region: 16 * MIB}
        assert (found["processes"], found["dma_bufs"]) == ([], [])
        ending.check_neighbour()
        child.communicate("")
    eventually(lambda: ending.clear() or not ending.agent.built.ledger.quarantined())


@killed
def test_a_process_that_cannot_die_is_quarantined(
    ending: Ending, eventually: Callable[..., None], killed: bool
) -> None:
    """Its pid, state D, and what it waits in are the evidence; when the driver lets go the slice is free."""
    holder = ending.holder()
    ending.rig.fault(hang="alloc")
    holder.send("alloc 16M")
    eventually(lambda: holder.state() == "D")
    ending.begin(killed=killed)
    eventually(lambda: ending.state() is LeaseState.FAILED)
    (found,) = ending.in_the_way()["processes"]
    assert (found["pid"], found["state"]) == (holder.pid, "D")
    assert found["waits_in"]
    ending.rig.fault(hang="never")
    ending.check_neighbour()
    eventually(lambda: ending.clear() or not ending.agent.built.ledger.quarantined())
