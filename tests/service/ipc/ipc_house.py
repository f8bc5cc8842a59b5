"""An agent that takes shared memory along, and two users of these tests alone who leave some."""

from __future__ import annotations

import os
import subprocess
from typing import Any

from service_builders import House, user

from nodeagent.adapters.clock import SystemClock
from nodeagent.adapters.ipc import SHM, IpcSpace
from nodeagent.domain.ipc import Kind
from nodeagent.domain.lease import AnchorKind, Lease
from nodeagent.service.census import Census
from nodeagent.service.shared_memory import SharedMemory

# Of this run alone: another one's processes would be sessions of theirs.
UID, OTHER = 530_000_000 + os.getpid(), 540_000_000 + os.getpid()
CGROUP = AnchorKind.CGROUP
# Makes what each line of its input asks for, and says so; ends with its input.
MAKER = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
for line in sys.stdin:
    what, _, name = line.strip().partition(" ")
    if what == "segment": kept = libc.shmget(0, 4096, 0o1600)
    elif what == "attach": libc.shmat(kept, None, 0)
    elif what == "queue": libc.msgget(0, 0o1600)
    elif what == "semaphore": libc.semget(0, 1, 0o1600)
    elif what == "file": os.close(os.open(f"/dev/shm/{name}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    elif what == "unshare": assert libc.unshare(0x08000000) == 0
    print("done", flush=True)
"""


class SteppedClock(SystemClock):
    """The kernel's clocks, and somebody who sets one of them."""

    step = 0.0

    def wall(self) -> float:
        return super().wall() + self.step


class IpcHouse(House):
    """An agent with cgroups, and its parts for shared memory."""

    space = IpcSpace()

    @property
    def shared_memory(self) -> SharedMemory:
        assert self.tiers.shared_memory is not None
        return self.tiers.shared_memory

    @property
    def census(self) -> Census:
        return self.shared_memory.census

    def take(self, uid: int = UID, **order: Any) -> Lease:
        return self.grant(user(uid), cus=8, **{"anchor": CGROUP, **order})

    def told(self, lease: Lease, kind: str) -> str:
        return "; ".join(one.reason or "" for one in self.ledger.events(lease=lease.id) if one.kind == kind)


class Maker:
    """A process of *uid* that makes shared memory when it is told to."""

    def __init__(self, uid: int = UID, *, as_root: bool = False) -> None:
        who = {} if as_root else {"user": uid, "group": uid, "extra_groups": []}
        self.process = subprocess.Popen(
            ["/usr/bin/python3", "-c", MAKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **who
        )

    def make(self, *what: str) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        for line in what:
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()
            assert self.process.stdout.readline() == "done\n"

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def remove_all() -> None:
    for uid in (UID, OTHER):
        for found in IpcSpace().find(uid).found:
            if found.kind is Kind.FILE:
                (SHM / found.name).unlink()
            else:
                flag = {Kind.SEGMENT: "-m", Kind.QUEUE: "-q", Kind.SEMAPHORES: "-s"}[found.kind]
                subprocess.run(["ipcrm", flag, found.name], check=True)


def kinds(uid: int = UID) -> set[Kind]:
    return {found.kind for found in IpcSpace().find(uid).found}


def verdicts(house: IpcHouse, lease: Lease) -> dict[str, str]:
    """Reasons by kind, as the dry run has them."""
    return {one["kind"]: one["reason"] for one in house.shared_memory.view(lease).objects}
