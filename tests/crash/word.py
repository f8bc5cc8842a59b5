"""The word that was given: what the agent answered its callers, and so must keep whatever happens to it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .ledger_copy import Lease, Ledger
from .outside import Memory, Outside

PATIENCE_SECONDS = 20


@dataclass
class Holder:
    """A process of the harness that holds a lease, or is to: it sleeps and is not to be disturbed."""

    process: subprocess.Popen[bytes]
    uid: int
    ended: bool = False  # by the harness
    made: bool = False  # shared memory

    @property
    def pid(self) -> int:
        return self.process.pid

    def alive(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        self.ended = True
        self.process.kill()
        self.process.wait()

    def make(self) -> None:
        """Let it make shared memory, and wait until that is there."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"!")
        self.process.stdin.flush()
        end = time.monotonic() + PATIENCE_SECONDS
        while not self.shared_file.exists():
            if time.monotonic() > end:
                raise RuntimeError(f"process {self.pid} makes no {self.shared_file}")
            time.sleep(0.001)
        self.made = True

    @property
    def shared_file(self) -> Path:
        return Path(f"/dev/shm/crash-{self.pid}")

    def cgroup(self) -> str | None:
        """Its cgroup2 path; None once it is dead."""
        try:
            lines = Path(f"/proc/{self.pid}/cgroup").read_text(encoding="utf-8").splitlines()
        except OSError:
            return None
        return next((line.removeprefix("0::") for line in lines if line.startswith("0::")), None)


@dataclass
class Promise:
    """One lease as its holder was told of it. What a death left unanswered may be either way, once."""

    id: int
    request_id: str
    holder: Holder
    anchor: str
    slices: list[tuple[str, list[int], int]]
    cgroup: str | None
    deadlines: set[int | None]
    attached: bool = False
    ended: bool = False
    may_end: bool = False  # its release was asked for and not answered
    renewing: bool = False  # so was its renewal
    attaching: bool = False  # so was its holder's entry
    unarmed: bool = False  # the ledger need not know that somebody is in
    ending: bool = False  # it may be gone from a ledger that was lost: it had no right to live on

    @property
    def in_cgroup(self) -> bool:
        """Whether it lives as long as somebody is in its cgroup."""
        return self.anchor == "cgroup" and self.attached

    @property
    def held_unarmed(self) -> bool:
        """Whether its holder is in, of which the ledger may know nothing."""
        return self.unarmed and self.in_cgroup and self.holder.alive()

    def must_end(self, now_ns: int) -> bool:
        """Whether it has no right to live on."""
        if self.held_unarmed:
            return self.ended
        overdue = all(deadline is not None and deadline <= now_ns for deadline in self.deadlines)
        gone = not self.holder.alive() and self.anchor in ("process", "cgroup")
        return self.ended or overdue or gone

    def settle_attach(self, row: Lease) -> None:
        """Learn whether an attach that was not answered was done."""
        if self.attaching:
            self.attached = self.holder.cgroup() == self.cgroup
            self.unarmed = self.attached and not row.armed

    def settled_as(self, row: Lease) -> None:
        """From here on it is as the ledger has it: what was unanswered went one way."""
        self.deadlines = {row.deadline_ns}
        self.may_end = self.renewing = self.attaching = self.ending = False

    def may_end_at(self, now_ns: int) -> bool:
        unseen = self.attaching and not self.holder.alive()
        overdue = any(deadline is not None and deadline <= now_ns for deadline in self.deadlines)
        return self.may_end or unseen or (overdue and not self.held_unarmed)


@dataclass
class Word:
    """Every promise, and the request whose answer a death swallowed."""

    promises: dict[int, Promise] = field(default_factory=dict)
    unanswered: dict[str, dict[str, Any]] = field(default_factory=dict)  # grants by request id
    highest: int = 0  # id
    forgotten: frozenset[int] = frozenset()  # that a lost or restored ledger need not know yet

    def live(self) -> list[Promise]:
        return [promise for promise in self.promises.values() if not promise.ended]

    def granted(self, answer: dict[str, Any], asked: dict[str, Any], holder: Holder) -> Iterator[str]:
        """Take a grant's answer as a promise."""
        if answer["fresh"] and answer["id"] <= self.highest:
            yield f"lease id {answer['id']} comes after {self.highest}"
        if answer["fresh"] and answer["state"] != "active":
            yield f"lease {answer['id']} was granted as {answer['state']}"
        self.unanswered.pop(asked["request_id"], None)
        self.highest = max(self.highest, answer["id"])
        known = self.promises.get(answer["id"])
        over = known is not None and known.ending and answer["fresh"]  # its id went with a lost ledger
        if known is not None and answer["fresh"] and not over:
            yield f"lease {answer['id']} was granted twice"
        if known is None or over:
            self.promises[answer["id"]] = Promise(
                answer["id"],
                asked["request_id"],
                holder,
                asked["anchor"],
                [(one["device"], one["cus"], one["vram_bytes"]) for one in answer["slices"]],
                answer["cgroup"],
                {answer["deadline_ns"]},
            )

    def sure(self, now_ns: int) -> Iterator[int]:
        """The leases that live and have to."""
        for promise in self.live():
            if not promise.may_end and not promise.must_end(now_ns):
                yield promise.id

    def ledger_lost(self, outside: Outside, now_ns: int) -> None:
        """What lives has to come back; what has ended nobody knows any more, nor its id."""
        self._doubt(outside, now_ns)
        self.promises = {promise.id: promise for promise in self.live()}
        self.highest = max(self.sure(now_ns), default=0)

    def ledger_restored(self, outside: Outside, now_ns: int) -> None:
        """What was granted since has to come back; renewals since are lost with the ledger they were in."""
        self._doubt(outside, now_ns)
        for promise in self.live():
            promise.renewing = promise.unarmed = True

    def _doubt(self, outside: Outside, now_ns: int) -> None:
        sure = set(self.sure(now_ns))
        for promise in self.promises.values():
            promise.ending = promise.id not in sure
        self.forgotten |= outside.leases | outside.sidecars.keys()

    def rebooted(self) -> None:
        """No lease outlives a boot, whatever it was promised."""
        self.unanswered.clear()
        if self.forgotten:  # and nobody has looked: the sidecars are gone too, and with both the ids
            self.highest = 0
            for promise in self.promises.values():
                promise.ending = True
        self.forgotten = frozenset()
        for promise in self.live():
            promise.ended = True

    def check(self, ledger: Ledger, memory: Memory, now_ns: int) -> Iterator[str]:
        """Hold the settled *ledger* to what was promised, and learn which way the unanswered went.

        *memory*: whose shared memory there is.
        """
        self._adopt(ledger)
        self.forgotten = frozenset()
        for promise in tuple(self.promises.values()):
            row = ledger.leases.get(promise.id)
            if row is None and promise.ending:
                del self.promises[promise.id]
            elif row is None:
                yield f"lost: lease {promise.id} was answered, and is not in the ledger"
            else:
                yield from self._kept(promise, row, now_ns)
                yield from _memory_of(promise, row, memory)
        for lease in ledger.leases.values():
            if lease.state == "active" and lease.id not in self.promises:
                yield f"lease {lease.id} is active, and nobody asked for it"

    def _kept(self, promise: Promise, row: Lease, now_ns: int) -> Iterator[str]:
        holder = promise.holder
        if promise.attaching or promise.renewing:
            promise.deadlines = {row.deadline_ns}  # either way is well: its agent died before it answered
        promise.settle_attach(row)  # who got in before that death holds the lease, whatever its deadline
        if row.state == "released":
            if not promise.must_end(now_ns) and not promise.may_end_at(now_ns):
                yield f"lost: lease {promise.id} was granted, and is released"
            if promise.attached and holder.alive():
                yield f"lease {promise.id} is free, and process {holder.pid} of it lives"
            promise.ended = True
        elif promise.must_end(now_ns):
            yield f"lost: lease {promise.id} had ended, and is {row.state}"
        else:
            if promise.ending and not holder.alive():
                holder.ended = True  # by a release of which the ledger knows nothing any more
            yield from self._unchanged(promise, row)
            promise.settled_as(row)

    @staticmethod
    def _unchanged(promise: Promise, row: Lease) -> Iterator[str]:
        holder, told = promise.holder, f"lease {promise.id}"
        if [(one.device, sorted(one.cus), one.vram_bytes) for one in row.slices] != promise.slices:
            yield f"{told} has other slices than it was granted"
        if row.deadline_ns not in promise.deadlines and not promise.renewing and not promise.attaching:
            yield f"lost: {told} was renewed to {promise.deadlines}, and ends at {row.deadline_ns}"
        if row.cgroup != promise.cgroup:
            yield f"{told} was told {promise.cgroup}, and has {row.cgroup}"
        if promise.attached and not holder.ended and holder.cgroup() != promise.cgroup:
            yield f"disturbed: process {holder.pid} of {told} is in {holder.cgroup()}"
        if promise.in_cgroup and not row.armed and not promise.unarmed:
            yield f"lost: {told} was attached to, and waits for its holder"

    def _adopt(self, ledger: Ledger) -> None:
        """What an unanswered grant left is its holder's, who may find it by its request id."""
        for request_id, asked in self.unanswered.items():
            row = ledger.leases.get(ledger.requests.get(request_id, 0))
            if row is None or row.id in self.promises:
                continue
            self.highest = max(self.highest, row.id)
            self.promises[row.id] = Promise(
                row.id,
                request_id,
                asked["holder"],
                asked["anchor"],
                [(one.device, sorted(one.cus), one.vram_bytes) for one in row.slices],
                row.cgroup,
                {row.deadline_ns},
                may_end=True,
            )


def _memory_of(promise: Promise, row: Lease, memory: Memory) -> Iterator[str]:
    """Of a live holder it is all there; of an ended lease it is gone, or it was told that some stays."""
    holder = promise.holder
    if not holder.made:
        return
    if not promise.ended and holder.alive() and holder.pid not in memory.segments & memory.files:
        yield f"disturbed: shared memory of lease {promise.id} is gone"
    if promise.ended and holder.pid in memory.segments | memory.files and not row.told:
        yield f"orphan: shared memory of lease {promise.id}, and nobody is told"
