"""Grants and releases without end against a served agent: what it uses must not grow with them.

python tests/bench/soak.py --cycles 100000     a table; exit 1 when something is over its bound
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from gpulease.transport import Transport
from nodeagent.adapters.cgroup_mount import find_mount
from nodeagent.adapters.hook_files import ROOT
from nodeagent.wiring import LEDGER, instance

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.serving import AGENT, agent, workers

CLIENTS = 4
RUN_EVERY = 100  # a cycle of so many is a whole `gpulease run`: attached, hooked, reaped
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Used:
    """What an idle agent uses, between two rounds."""

    rss_mib: float
    descriptors: int
    threads: int
    children: int
    cgroups: int  # of leases
    hook_directories: int  # of leases
    database_mib: float
    log_mib: float  # the write-ahead log


# What may be more after any number of cycles than it was when warm.
MORE = Used(rss_mib=24, descriptors=16, threads=4, children=0, cgroups=0, hook_directories=0,
            database_mib=192, log_mib=4)  # fmt: skip
# History is kept: so much of the database's part is for each cycle, until pruning keeps it at the above.
MIB_A_CYCLE = 6 / 1024


class Place:
    """An agent that runs, and all that its leases may leave behind."""

    def __init__(self, directory: Path, arbiter: int) -> None:
        self._socket = directory / "s"
        self._state = directory / "state"
        name = instance(self._state)
        mount = find_mount()
        self._cgroups = mount / name if mount else None
        self._hook = [ROOT / one / name.removesuffix(".slice") for one in ("", "usage")]
        (self._worker,) = workers(arbiter)

    def cycle(self, number: int) -> None:
        """One lease, from its grant to its proved end."""
        if number % RUN_EVERY == 0:
            self._run()
            return
        transport = Transport(str(self._socket), timeout=30)
        body = {
            "request_id": f"soak-{number}",
            "anchor": {"kind": "ttl"},
            "slices": [{"cu_percent": 25, "vram_percent": 25, "count": 1 + number % 2}],
        }
        granted = transport.call("POST", "/v1/leases", json.dumps(body).encode())
        if granted.status not in (200, 201):  # 200: the client asked again, the machine being busy
            raise RuntimeError(f"grant {number}: {granted.status} {granted.body!r}")
        lease, state = json.loads(granted.body)["id"], ""
        while state != "released":
            answer = transport.call("DELETE", f"/v1/leases/{lease}?wait=5")
            state = json.loads(answer.body)["state"]
            if state == "failed":
                raise RuntimeError(f"lease {lease} was not proved clean: {answer.body!r}")

    def _run(self) -> None:
        command = [sys.executable, "-m", "gpulease", "run", "--cu", "25%", "--vram", "1G", "--", "true"]
        environment = {**os.environ, "GPULEASE_SOCKET": str(self._socket)}
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)

    def settle(self) -> None:
        """Wait for the end of what `run` left to be reaped."""
        live = "queued,preparing,active,lost,releasing"
        transport = Transport(str(self._socket), timeout=30)
        deadline = time.monotonic() + 60
        while json.loads(transport.call("GET", f"/v1/leases?state={live}").body)["leases"]:
            if time.monotonic() > deadline:
                raise RuntimeError("a lease is not reaped")
            time.sleep(0.1)

    def used(self) -> Used:
        process = Path(f"/proc/{self._worker}")
        status = dict(
            line.split(":", 1) for line in (process / "status").read_text(encoding="utf-8").splitlines()
        )
        children = process / f"task/{self._worker}/children"
        database = self._state / LEDGER
        return Used(
            rss_mib=int(status["VmRSS"].split()[0]) / 1024,
            descriptors=len(list((process / "fd").iterdir())),
            threads=int(status["Threads"]),
            children=len(children.read_text(encoding="ascii").split()),
            cgroups=_directories(self._cgroups) if self._cgroups else 0,
            hook_directories=sum(_directories(one) for one in self._hook),
            database_mib=database.stat().st_size / MIB,
            log_mib=database.with_name(f"{LEDGER}-wal").stat().st_size / MIB,
        )


def _directories(parent: Path) -> int:
    return sum(one.is_dir() for one in parent.iterdir()) if parent.is_dir() else 0


def over(warm: Used, now: Used, cycles: int) -> list[str]:
    """What grew beyond its bound in *cycles* since it was warm."""
    history = min(MORE.database_mib, 2 + cycles * MIB_A_CYCLE)
    allowed = {one.name: getattr(MORE, one.name) for one in fields(Used)} | {"database_mib": history}
    return [
        f"{name}: {getattr(warm, name):g} when warm, {getattr(now, name):g} after {cycles} cycles more"
        f" (bound: {most:g} more)"
        for name, most in allowed.items()
        if getattr(now, name) - getattr(warm, name) > most
    ]


def soak(cycles: int, *, seconds: float = 1e9, show: bool = False) -> list[str]:
    """Run *cycles*, or as many as *seconds* allow; what grew too much after the first tenth."""
    step = max(1, cycles // 20)
    until = time.monotonic() + seconds
    directory = Path(tempfile.mkdtemp(prefix="soak-", dir="/dev/shm"))  # so that no disk sets the pace
    found: list[str] = []
    warm, done = None, 0
    try:
        with agent(AGENT, directory) as process, ThreadPoolExecutor(CLIENTS) as clients:
            place = Place(directory, process.pid)
            if show:
                print("cycles", *(one.name for one in fields(Used)), flush=True)
            while done < cycles and time.monotonic() < until and not found:
                list(clients.map(place.cycle, range(done, done + step)))
                done += step
                place.settle()
                now = place.used()
                if show:
                    print(
                        done, *(f"{each:g}" for each in (round(one, 1) for one in astuple(now))), flush=True
                    )
                if warm is None and done * 10 >= cycles:
                    warm, warm_at = now, done
                elif warm is not None:
                    found = over(warm, now, done - warm_at)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so many, however far it came")
    given = parser.parse_args()
    found = soak(given.cycles, seconds=given.seconds, show=True)
    print("\n".join(found) or "nothing grew beyond its bound")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
