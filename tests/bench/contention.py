"""Many clients, more demand than there is, and a witness outside the agent.

Between grant and release each client claims every CU of its slice as a file made with O_EXCL: of two holders
of one CU the second fails to open it, whatever the agent believes. Run it by `make bench`, or alone:

    python tests/bench/contention.py --clients 64 --seconds 60 --kills 2
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpulease.errors import AgentUnreachable, GpuleaseError
from gpulease.transport import Transport

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.figures import Figure, Subject, Taken, Target, Turn
from tests.bench.serving import AGENT, agent, workers

MUTANT = (str(Path(__file__).with_name("mutant_agent.py")),)
CU_PERCENT = 25  # four leases fill a device, so 32 fill the node: 64 clients demand twice that
HOLD_SECONDS = (0.05, 0.4)


@dataclass
class Result:
    """What all clients together saw."""

    counts: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)  # seconds, of grants that were granted
    locked: int = 0  # "database is locked" in an answer or in the agent's log
    seconds: float = 0.0
    killed: int = 0  # workers that were killed, each another one

    @property
    def asked(self) -> int:
        return self.counts["granted"] + self.counts["refused"]

    @property
    def refused_share(self) -> float:
        return self.counts["refused"] / max(1, self.asked)

    def lines(self) -> Iterator[str]:
        """The result for a terminal."""
        ordered = sorted(self.latencies) or [0.0]
        yield f"clients' requests        {self.asked} in {self.seconds:.0f} s"
        yield f"granted                  {self.counts['granted']}"
        yield f"refused                  {self.counts['refused']} ({self.refused_share:.0%})"
        yield f"two holders of one CU    {self.counts['conflict']}"
        yield f"5xx answers              {self.counts['5xx']}"
        yield f"'database is locked'     {self.locked}"
        yield f"workers killed           {self.killed}"
        yield f"no answer within 10 s    {self.counts['unreachable']}"
        median, p99 = (ordered[int(len(ordered) * share)] * 1e3 for share in (0.5, 0.99))
        yield f"grant, median and p99    {median:.1f} ms, {p99:.1f} ms"


@dataclass(frozen=True)
class Client:
    """One client process: grant, claim, hold, unclaim, release, again."""

    number: int
    socket: Path
    claims: Path
    until: float  # monotonic

    def run(self) -> tuple[Counter[str], list[float]]:
        """Work until the time is over; counts and the latencies of its grants."""
        counts: Counter[str] = Counter()
        latencies: list[float] = []
        transport = Transport(str(self.socket), timeout=10)
        turn = 0
        while time.monotonic() < self.until:
            turn += 1
            began = time.monotonic()
            status, lease = self._grant(transport, turn, counts)
            if status in (200, 201):
                counts["granted"] += 1
                latencies.append(time.monotonic() - began)
                self._hold(lease, counts)
                self._release(transport, lease["id"], counts)
            elif status == 409:
                counts["refused"] += 1
                time.sleep(random.uniform(0.01, 0.05))
            else:
                counts["5xx" if status >= 500 else f"status {status}"] += 1
        return counts, latencies

    def _grant(self, transport: Transport, turn: int, counts: Counter[str]) -> tuple[int, dict[str, Any]]:
        body = {
            "request_id": f"{self.number}-{turn}",
            "anchor": {"kind": "ttl"},
            "holder": {"kind": "client", "id": f"bench-{self.number}"},
            "slices": [{"cu_percent": CU_PERCENT, "vram_percent": CU_PERCENT}],
            "placement": "spread",
        }
        return self._call(transport, "POST", "/v1/leases", body, counts)

    def _release(self, transport: Transport, lease: int, counts: Counter[str]) -> None:
        status, _ = self._call(transport, "DELETE", f"/v1/leases/{lease}?wait=5", None, counts)
        if status >= 500:
            counts["5xx"] += 1

    def _call(
        self, transport: Transport, method: str, target: str, body: Any, counts: Counter[str]
    ) -> tuple[int, dict[str, Any]]:
        """A call that a restart of the agent makes again: the request id keeps a grant from coming twice."""
        data = None if body is None else json.dumps(body).encode()
        while True:
            try:
                answer = transport.call(method, target, data)
            except (AgentUnreachable, GpuleaseError):
                counts["unreachable"] += 1
                time.sleep(0.05)
                continue
            if b"database is locked" in answer.body:
                counts["locked"] += 1
            return answer.status, json.loads(answer.body or b"{}")

    def _hold(self, lease: dict[str, Any], counts: Counter[str]) -> None:
        claimed = []
        for one in lease["slices"]:
            for cu in members(one["cus"]):
                path = self.claims / f"{one['device'].replace('/', '_')}.{cu}"
                try:
                    os.close(os.open(path, os.O_CREAT | os.O_EXCL))
                    claimed.append(path)
                except FileExistsError:
                    counts["conflict"] += 1
        time.sleep(random.uniform(*HOLD_SECONDS))
        for path in claimed:
            path.unlink()


def members(text: str) -> Iterator[int]:
    """The numbers in list syntax."""
    for item in filter(None, text.split(",")):
        low, _, high = item.partition("-")
        yield from range(int(low), int(high or low) + 1)


def storm(*, clients: int, seconds: float, kills: int = 0, words: Sequence[str] = AGENT) -> Result:
    """Run *clients* against a fresh agent, killing its worker *kills* times in between."""
    directory = Path(tempfile.mkdtemp(prefix="bench-"))
    # In memory: thousands of files a second on the ledger's disk would make each of its syncs wait for them.
    claims = Path(tempfile.mkdtemp(prefix="bench-", dir="/dev/shm"))
    result = Result(seconds=seconds)
    killed: set[int] = set()
    try:
        with agent(words, directory) as process:
            until = time.monotonic() + seconds
            tasks = [Client(number, directory / "s", claims, until) for number in range(clients)]
            with multiprocessing.get_context("fork").Pool(clients) as pool:
                running = pool.map_async(Client.run, tasks, chunksize=1)
                for _ in range(kills):
                    time.sleep(seconds / (kills + 1))
                    for pid in workers(process.pid):
                        os.kill(pid, signal.SIGKILL)
                        killed.add(pid)
                for counts, latencies in running.get(timeout=seconds + 120):
                    result.counts += counts
                    result.latencies += latencies
        log = (directory / "log").read_text(encoding="utf-8", errors="replace")
        result.killed = len(killed)
        result.locked = result.counts["locked"] + log.count("database is locked")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        shutil.rmtree(claims, ignore_errors=True)
    return result


def turns() -> Iterator[Turn]:
    """As shipped, and without the guards: that run must find conflicts, or the first proves nothing."""
    while True:
        ours = storm(clients=64, seconds=20, kills=1)
        mutant = storm(clients=24, seconds=6, words=MUTANT)
        if not ours.counts["granted"] or not mutant.counts["conflict"]:
            raise RuntimeError("the crowd was granted nothing, or the witness sees nothing")
        yield {
            "contention": Taken([ours.counts["conflict"]], [mutant.counts["conflict"]]),
            "contention-faults": Taken([ours.counts["5xx"] + ours.locked], [mutant.counts["5xx"]]),
        }


WITHOUT = "without the guards"
FIGURES = (
    Figure("contention", "two holders of one compute unit, 64 clients, a killed worker", "", WITHOUT,
           Target("value", 0)),
    Figure("contention-faults", "5xx answers, and databases that are locked", "", WITHOUT,
           Target("value", 0)),
)  # fmt: skip
SUBJECTS = {"contention": Subject("Twice the demand", FIGURES, turns, count=1, warm=0, quick=1)}


def main() -> int:
    """Run it from the command line; exit 1 when a CU had two holders."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--mutant", action="store_true", help="take the primary key and the lock out")
    given = parser.parse_args()
    words = MUTANT if given.mutant else AGENT
    result = storm(clients=given.clients, seconds=given.seconds, kills=given.kills, words=words)
    print("\n".join(result.lines()))
    return 1 if result.counts["conflict"] else 0


if __name__ == "__main__":
    sys.exit(main())
