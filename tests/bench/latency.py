"""What one call costs, beside the floor that it cannot go below: each ratio is of one run on one machine.

python tests/bench/latency.py
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from contention import AGENT, agent

from gpulease.transport import Transport

ROUNDS = 100
STARTS = 10


def measure(rounds: int, act: Callable[[], object]) -> float:
    """The median seconds of *act*."""
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        act()
        took.append(time.perf_counter() - began)
    return median(took)


class Floor:
    """What two transactions must do at least: write a page and sync it, twice."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)

    def act(self) -> None:
        for _ in range(2):
            os.write(self._file, bytes(4096))
            os.fdatasync(self._file)


def line(what: str, seconds: float, floor: float, of_what: str) -> str:
    """One row: milliseconds, and how many times the floor that is."""
    return f"{what:30} {seconds * 1e3:8.1f} ms {seconds / floor:8.1f} × {of_what}"


def calls(directory: Path) -> list[str]:
    """Grant and release beside two syncs, and an empty call."""
    transport = Transport(str(directory / "s"), timeout=10)
    body = {"anchor": {"kind": "ttl"}, "slices": [{"cu_percent": 25, "vram_percent": 25}]}
    leases: list[int] = []

    def grant() -> None:
        answer = transport.call("POST", "/v1/leases", json.dumps(body).encode())
        leases.append(json.loads(answer.body)["id"])

    def release() -> None:
        transport.call("DELETE", f"/v1/leases/{leases.pop()}?wait=5")

    syncs = measure(ROUNDS, Floor(directory / "floor").act)
    empty = measure(ROUNDS, lambda: transport.call("GET", "/healthz"))
    granted, released = [], []
    for _ in range(ROUNDS):
        granted.append(measure(1, grant))
        released.append(measure(1, release))
    devices = measure(ROUNDS, lambda: transport.call("GET", "/v1/devices"))
    return [
        line("two synced writes", syncs, syncs, "two synced writes"),
        line("GET /healthz", empty, empty, "GET /healthz"),
        line("grant", median(granted), syncs + empty, "both"),
        line("release", median(released), syncs + empty, "both"),
        line("GET /v1/devices", devices, empty, "GET /healthz"),
    ]


def commands(directory: Path) -> list[str]:
    """Whole processes beside an interpreter that does nothing."""
    environment = {**os.environ, "GPULEASE_SOCKET": str(directory / "s")}

    def run(*words: str) -> float:
        command = [sys.executable, *words]
        return measure(STARTS, lambda: subprocess.run(command, env=environment, stdout=subprocess.DEVNULL))

    nothing = run("-c", "pass")
    size = ("--cu", "25%", "--vram", "1G")
    return [
        line("python -c pass", nothing, nothing, "python -c pass"),
        line("gpulease devices", run("-m", "gpulease", "devices"), nothing, "python -c pass"),
        line(
            "gpulease run -- true",
            run("-m", "gpulease", "run", *size, "--", "true"),
            nothing,
            "python -c pass",
        ),
        line("nodeagent health", run("-m", "nodeagent.cli.main", "health"), nothing, "python -c pass"),
    ]


def main() -> None:
    directory = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        with agent(AGENT, directory):
            print("\n".join(calls(directory) + commands(directory)))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
