"""The agent that is to be killed: built by the wiring, driven over a socket by one verb at a time.

The threads that look by themselves are left out, so that what is done for a verb is all that is done: looks
come by verb, too. What the agent begins in the background is waited for before the verb's answer.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from alembic.script import ScriptDirectory

from nodeagent import config as settings
from nodeagent import wiring
from nodeagent.adapters.machine import Machine, SimulatedTree
from nodeagent.domain.errors import AgentError, LedgerUnavailable
from nodeagent.domain.lease import AnchorKind, HolderKind, Lease, LeaseState
from nodeagent.domain.request import Request, SliceRequest
from nodeagent.ledger import migrate
from nodeagent.ledger.backup import backup
from nodeagent.ledger.engine import connect
from nodeagent.service.orders import AnchorOrder, Caller, Granted, Order
from nodeagent.service.reconcile import Reconciler
from nodeagent.service.watch import Watch
from nodeagent.wiring import Node
from tests.ledger.old_schemas import LATER, REVISIONS, fill, migrations_of_next_version

from .tracing import Refusal, arm, load_filter

PASSING = frozenset({LeaseState.PREPARING, LeaseState.RELEASING})
MOST_LOOKS = 5
WAIT_SECONDS = 20.0
FAILING_SECONDS = 0.5  # where the disk fails, for what then does not end before it works again
FAILING = frozenset(Refusal(1, lasting).how for lasting in (False, True))

Answer = dict[str, Any]


@dataclass
class Clock:
    """Boot time and boot id as the harness says: in the agent, from each request. *booted*: on the wall."""

    boot_id: str
    now_ns: int
    booted: float = 1_800_000_000.0

    def boot_ns(self) -> int:
        return self.now_ns

    def wall(self) -> float:
        return self.booted + self.now_ns / 1e9


def without_threads() -> None:
    """In this process and its children no agent looks by itself."""
    for each in (Reconciler, Watch):
        each.start = lambda self: None  # type: ignore[method-assign]


def build(state: Path, root: Path, machine: Machine, clock: Clock) -> wiring.Built:
    """The whole agent over a simulated machine, with the gate on its device nodes, and no quotas."""
    config = settings.Config(
        state=settings.State(directory=state),
        devices=settings.Devices(gate="acl"),
        limits=settings.Limits(live_leases=10_000, queued_leases=10_000, grants_per_second=1e9),
    )
    node = Node(SimulatedTree(root, machine), root, machine.name)
    built = wiring.build(config, node, clock=clock)  # type: ignore[arg-type]
    built.reconciler._periods = replace(built.reconciler._periods, look=0)  # each look is at everything
    return built


def old_ledger(file: Path, device: str) -> None:
    """Make a ledger of the oldest revision, with leases on *device*: root's, which no gate had let in."""
    migrate.migrate(file, to=REVISIONS[0])
    changes = {
        "0000:c1:00.0/0": device,
        "'pool'": f"'{device.partition('/')[0]}'",
        ", 1000, 1000, 1000,": ", 0, 0, 0,",
        "'verified'": "'undone'",
    }
    with closing(connect(file)) as connection:
        fill(connection, REVISIONS[0], changes)


def prepare_next_version(directory: Path) -> None:
    """Make and compile the migrations of the version after this one."""
    migrations_of_next_version(directory)
    tuple(ScriptDirectory(str(directory)).walk_revisions())


def next_version(directory: Path) -> None:
    """From here on, this process is an agent of the next version."""
    migrate.files = lambda _: directory  # type: ignore[attr-defined]
    migrate.NEWEST = LATER


def serve(built: wiring.Built, clock: Clock, connection: socket.socket, program: bytes) -> None:
    """Answer verbs until the harness hangs up, or the tracer ends this process. Its first is "go"."""
    connection.recv(1)
    load_filter(program)
    verbs = Verbs(built)
    while request := connection.recv(1 << 16):
        asked = json.loads(request)
        clock.now_ns = asked.pop("now_ns")
        verb: Callable[..., Answer] = getattr(verbs, asked.pop("verb"))
        n, how = asked.pop("n"), asked.pop("how")
        verbs.patience = FAILING_SECONDS if how in FAILING else WAIT_SECONDS
        arm(n, how)
        try:
            answer = verb(**asked)
        except AgentError as fault:
            answer = {"fault": type(fault).__name__, "why": str(fault)}
        arm(0)
        connection.send(json.dumps(answer).encode())


class Verbs:
    """What the harness may ask of the agent: its public use cases, and nothing under them."""

    def __init__(self, built: wiring.Built) -> None:
        self._built = built
        self._agent = built.agent
        self.patience = WAIT_SECONDS

    def start(self) -> Answer:
        """Open the ledger, migrating it, look at everything, and finish what a death cut short."""
        self._built.start()
        self._settle()
        return {"unready": self._agent.unready()}

    def grant(
        self, *, uid: int, pid: int, anchor: str, ttl: int | None, request_id: str, **wanted: Any
    ) -> Answer:
        """Grant one slice; again with the same *request_id* is the same lease."""
        order = Order(
            request=Request(slices=(SliceRequest(**wanted),)),
            holder_kind=HolderKind.CLIENT,
            holder_id=request_id,
            anchor=AnchorOrder(AnchorKind(anchor), ttl),
            request_id=request_id,
            digest="one",
        )
        outcome = self._agent.grant(_caller(uid, pid), order)
        if not isinstance(outcome, Granted):
            return {"refused": type(outcome).__name__}
        return {**_told(outcome.lease), "fresh": outcome.fresh}

    def attach(self, *, uid: int, pid: int, lease: int) -> Answer:
        """Move process *pid* into its lease."""
        pidfd = os.pidfd_open(pid)
        try:
            return _told(self._agent.attach(_caller(uid, pid, pidfd), lease))
        finally:
            os.close(pidfd)

    def renew(self, *, uid: int, lease: int, ttl: int) -> Answer:
        return _told(self._agent.renew(_caller(uid, os.getpid()), lease, ttl))

    def release(self, *, uid: int, lease: int) -> Answer:
        """Release, and wait for the proof."""
        return _told(self._agent.release(_caller(uid, os.getpid()), lease, self.patience))

    def reconcile(self) -> Answer:
        """One look at everything, and the end of what it begins."""
        self._built.reconciler.run_once()
        self._settle()
        return {"unready": self._agent.unready()}

    reap = reconcile  # of a holder that the harness has ended, or of time that it let pass

    def backup(self, *, state: str, target: str) -> Answer:
        backup(Path(state) / wiring.LEDGER, Path(target))
        return {}

    def _settle(self) -> None:
        """Wait for what was begun; not where the ledger cannot even tell."""
        with suppress(LedgerUnavailable):
            self._wait_for_passing()

    def _wait_for_passing(self) -> None:
        end = time.monotonic() + self.patience  # for all: what does not settle is found by what it leaves
        for _ in range(MOST_LOOKS):
            passing = self._agent.leases(_caller(0, 0), state=PASSING)
            if not passing:
                return
            for lease in passing:
                self._agent.wait_lease(_caller(0, 0), lease.id, max(0.0, end - time.monotonic()))
            self._built.reconciler.run_once()


def _caller(uid: int, pid: int, pidfd: int | None = None) -> Caller:
    return Caller(uid, uid, frozenset(), pid, pidfd, administrator=uid == 0)


def _told(lease: Lease) -> Answer:
    """A lease as it is answered."""
    return {
        "id": lease.id,
        "state": lease.state,
        "deadline_ns": lease.anchor.deadline_ns,
        "cgroup": lease.cgroup,
        "slices": [
            {
                "device": held.placed.device,
                "cus": sorted(held.placed.cus),
                "vram_bytes": held.placed.vram_bytes,
            }
            for held in lease.slices
        ],
    }
