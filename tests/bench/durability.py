"""What durability costs: the syncs of a grant and of a release, and the time of a start with much to take up.

python tests/bench/durability.py     the first two by strace; exit 1 when a figure is over what is meant
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpulease.errors import GpuleaseError
from gpulease.transport import Transport
from nodeagent.adapters.clock import SystemClock
from nodeagent.domain.guarantee import Guarantee
from nodeagent.domain.lease import Lease, LeaseState, SliceState
from nodeagent.domain.records import EffectState
from nodeagent.ledger.ledger import Ledger
from nodeagent.wiring import LEDGER, simulated_node

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.serving import START_SECONDS, agent, remove_cgroups, workers

ROUNDS = 100
STARTS = 5
LIVE, PAST = 640, 10_000
PARTITIONED = ("-m", "nodeagent.cli.main", "serve", "--simulate", "mi300x-cpx")  # 63 devices
QUARTERED = ("-m", "nodeagent.cli.main", "serve", "--simulate", "mi300x-spx")
# What is meant: syncs of a grant and of a release with nothing running, seconds of a start.
GRANT_SYNCS, RELEASE_SYNCS, SECONDS = 2, 3, 2.0


class Node:
    """The agent in a directory, to be asked as one client does."""

    def __init__(self, directory: Path) -> None:
        self.state = directory / "state"
        self._transport = Transport(str(directory / "s"), timeout=30)

    def grant(self, **slice_wanted: Any) -> int:
        """The id of a lease that lives for a day unless it is released."""
        body = {"anchor": {"kind": "ttl"}, "ttl_seconds": 86_400, "slices": [slice_wanted]}
        answer = self._transport.call("POST", "/v1/leases", json.dumps(body).encode())
        if answer.status != 201:
            raise RuntimeError(f"{answer.status}: {answer.body!r}")
        return int(json.loads(answer.body)["id"])

    def release(self, lease: int) -> None:
        answer = self._transport.call("DELETE", f"/v1/leases/{lease}?wait=5")
        if json.loads(answer.body)["state"] != "released":
            raise RuntimeError(f"{answer.status}: {answer.body!r}")


@contextlib.contextmanager
def counted(pid: int, log: Path) -> Iterator[None]:
    """Have every sync of *pid*'s threads written to *log*, a line each."""
    words = ["strace", "-f", "-qq", "-e", "trace=fdatasync,fsync,sync_file_range,msync", "-e", "signal=none"]
    tracer = subprocess.Popen([*words, "-o", log, "-p", str(pid)], stderr=subprocess.DEVNULL)
    status = Path(f"/proc/{pid}/status")
    deadline = time.monotonic() + START_SECONDS
    while f"TracerPid:\t{tracer.pid}\n" not in status.read_text():
        if tracer.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("strace cannot attach to the agent")
        time.sleep(0.01)
    try:
        yield
    finally:
        tracer.terminate()
        tracer.wait()


def syncs(directory: Path) -> dict[str, list[int]]:
    """Syncs of each of many grants and releases, one after the other on an idle node."""
    found: dict[str, list[int]] = {"grant": [], "release": []}
    log = directory / "syncs"
    with agent(QUARTERED, directory) as process:
        node = Node(directory)
        node.release(node.grant(cu_percent=25, vram_percent=25))  # makes the reserve, opens a block of ids
        (worker,) = workers(process.pid)
        with counted(worker, log):

            def count() -> int:
                return log.read_text().count(" = ")

            for _ in range(ROUNDS):
                at_first = count()
                lease = node.grant(cu_percent=25, vram_percent=25)
                between = count()
                node.release(lease)
                found["grant"].append(between - at_first)
                found["release"].append(count() - between)
    return found


def fill(directory: Path) -> None:
    """A ledger of an agent that has lived: leases that hold something, with cgroups, and many that ended."""
    with started(directory):
        node = Node(directory)
        for _ in range(LIVE):
            node.grant(cus=3, vram_bytes=1 << 30, shape="exact", queue_slots=1)
        pattern = node.grant(cus=3, vram_bytes=1 << 30, shape="exact", queue_slots=1)
        node.release(pattern)
    ledger = Ledger(node.state / LEDGER, SystemClock())
    ledger.open()
    like = ledger.lease(pattern)
    assert like is not None
    for _ in range(PAST // 100):
        add_ended(ledger, like, 100)
    ledger.close()


def add_ended(ledger: Ledger, like: Lease, count: int) -> None:
    """*count* leases that lived and ended as *like* did, with its journal and events, in one transaction."""
    journal, told = ledger.effects(like.id), ledger.events(lease=like.id)
    placed = [one.placed for one in like.slices]
    with ledger.write() as tx:
        for _ in range(count):
            lease = tx.open_lease(
                state=LeaseState.PREPARING,
                holder=like.holder,
                gid=0,
                anchor=like.anchor,
                request=like.request,
                request_id=None,
                digest="",
                placed=placed,
            )
            for effect in journal:
                planned = tx.plan_effect(lease, effect.kind, effect.arguments)
                tx.mark_effect(planned.id, EffectState.UNDONE, effect.evidence)
            for event in told:
                tx.event(event.kind, uid=event.uid, lease=lease, reason=event.reason, data=event.data)
            anchor = replace(like.anchor, armed=True)
            environment = like.environment or {}
            tx.activate(
                lease, guarantee=Guarantee(), environment=environment, cgroup=like.cgroup, anchor=anchor
            )
            tx.move_lease(lease, LeaseState.RELEASING)
            tx.move_slices(lease, SliceState.CLEANING)
            tx.move_slices(lease, SliceState.FREE)
            tx.move_lease(lease, LeaseState.RELEASED)


@dataclass(frozen=True, slots=True)
class Start:
    """From the exec of an agent to its first grant, in seconds."""

    wall: float
    processor: float  # what it takes where nothing else runs


@contextlib.contextmanager
def started(directory: Path) -> Iterator[Start]:
    """An agent that has just granted its first lease, and what that took.

    It leaves the cgroups of its leases, for the next one to find.
    """
    site = directory / "site.toml"
    site.write_text('[devices]\nshares = { "*" = 24 }\n')  # LIVE leases are more than ten on a device
    command = [sys.executable, *PARTITIONED, "--socket", str(directory / "s"), "--config", str(site)]
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(directory / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed agent is compiled once
    with (directory / "log").open("ab") as log:
        began = time.monotonic()
        process = subprocess.Popen(
            [*command, "--state-dir", str(directory / "state")], stderr=log, stdout=log, env=environment
        )
        try:
            lease = _granted(directory, process)
            used = sum(processor_seconds(pid) for pid in (process.pid, *workers(process.pid)))
            took = Start(time.monotonic() - began, used)
            Node(directory).release(lease)
            yield took
        finally:
            process.terminate()
            process.wait(timeout=START_SECONDS)


def _granted(directory: Path, process: subprocess.Popen[bytes]) -> int:
    deadline, why = time.monotonic() + START_SECONDS, ""
    while time.monotonic() < deadline and process.poll() is None:
        try:
            return Node(directory).grant(cus=3, vram_bytes=1 << 30, shape="exact", queue_slots=1)
        except (GpuleaseError, RuntimeError) as fault:
            why = str(fault)
        time.sleep(0.005)
    raise RuntimeError(f"the agent granted nothing: {why}:\n{(directory / 'log').read_text()[-2000:]}")


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def first_grants(directory: Path) -> Start:
    """The medians of many starts."""
    took = []
    for _ in range(STARTS):
        with started(directory) as one:
            took.append(one)
    return Start(*(statistics.median(getattr(one, name) for one in took) for name in ("wall", "processor")))


def laying_out(directory: Path) -> float:
    """Seconds of the processor for what no real node needs: a simulated machine's new files for old ones."""
    simulated_node("mi300x-cpx", directory)
    began = time.process_time()
    simulated_node("mi300x-cpx", directory)
    return time.process_time() - began


def measured_syncs() -> bool:
    """Print the syncs; whether they are as few as meant."""
    if os.geteuid() != 0 or shutil.which("strace") is None:
        print("syncs left out: they are counted by strace, as root")
        return True
    directory = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        found = syncs(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    meant = {"grant": GRANT_SYNCS, "release": RELEASE_SYNCS}
    for what, each in found.items():
        middle = statistics.median(each)
        print(
            f"syncs of a {what:10} median {middle:g}, mean {statistics.mean(each):.2f}, most {max(each)}"
            f" (meant: {meant[what]}; of {ROUNDS})"
        )
    return all(statistics.median(each) <= meant[what] for what, each in found.items())


def measured_starts() -> bool:
    """Print the time of a start; whether it is as short as meant."""
    directory = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        files = laying_out(directory / "machine")
        empty = directory / "empty"
        empty.mkdir(mode=0o700)
        few = first_grants(empty)
        fill(directory)
        many = first_grants(directory)
    finally:
        remove_cgroups(directory / "state")
        shutil.rmtree(directory, ignore_errors=True)
    print(f"exec to first grant, medians of {STARTS}: wall, processor, and that without the machine's files")
    for what, took in (("an empty ledger", few), (f"{LIVE} live leases, {PAST} past ones", many)):
        print(f"{what:40} {took.wall:8.2f} s {took.processor:8.2f} s {took.processor - files:8.2f} s")
    print(f"meant: {SECONDS:g} s")
    return many.processor - files <= SECONDS


def main() -> int:
    counted_well = measured_syncs()
    return 0 if measured_starts() and counted_well else 1


if __name__ == "__main__":
    sys.exit(main())
