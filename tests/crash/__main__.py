"""Kill agents at their system calls, each worker in namespaces of its own, and count what was found.

See docs/crash.md. Ends with 0 when nothing was found; of a mutant, when something was.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue

from .mutants import MUTANTS
from .tracing import build_tools

# Processes that die with the worker, and a /run, a /dev/shm and IPC objects that nobody else is in.
UNSHARE = ("unshare", "--mount", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc")


@dataclass
class Tally:
    """What was tried, and what was found, by the lines of the workers."""

    points: Counter[str] = field(default_factory=Counter)  # "VERB STATE n=N SIDE"
    calls: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)  # calls that ended with EIO
    violations: list[str] = field(default_factory=list)
    rounds: int = 0
    began: float = field(default_factory=time.monotonic)

    def take(self, line: str) -> str:
        """Count one line; the same for the report."""
        kind, _, rest = line.partition(" ")
        if kind == "kill":
            point, _, call = rest.rpartition(" ")
            self.points[point] += 1
            self.calls[call] += 1
            return f"kill {self.points.total()}: {line.partition(' ')[2]}"
        if kind == "refused":
            self.refused[rest] += 1
        elif kind == "VIOLATION":
            self.violations.append(rest)
        elif kind == "rounds":
            self.rounds += int(rest)
        return line

    def summary(self) -> Iterator[str]:
        """The end of the report."""
        seconds = time.monotonic() - self.began
        by_verb = Counter(point.split(" ")[0] for point in self.points)
        yield "distinct by operation: " + ", ".join(
            f"{verb} {count}" for verb, count in by_verb.most_common()
        )
        yield "kills by system call: " + ", ".join(
            f"{name} {count}" for name, count in self.calls.most_common()
        )
        if self.refused:
            yield "I/O errors: " + ", ".join(f"{name} {count}" for name, count in self.refused.most_common())
        yield f"{self.rounds} rounds in {seconds:.0f} s, {self.rounds / seconds:.1f} a second"
        yield (
            f"kills {self.points.total()}, distinct kill points {len(self.points)},"
            f" violations {len(self.violations)}"
        )


def main() -> int:
    given = _arguments()
    tally, lines = Tally(), Queue[str | None]()
    with tempfile.TemporaryDirectory(prefix="nodeagent-crash-") as directory:
        tools = build_tools(Path(directory))
        workers = [_start(tools, given, number, lines) for number in range(given.jobs)]
        signal.signal(signal.SIGTERM, lambda *_: _ask_to_stop(workers))
        running = len(workers)
        end = time.monotonic() + given.seconds
        while running:
            line = lines.get()
            if line is None:
                running -= 1
            else:
                print(tally.take(line), flush=True)
            if (
                len(tally.points) >= given.points
                or time.monotonic() >= end
                or (given.mutant and tally.violations)
            ):
                _ask_to_stop(workers)
        failed = [worker.wait() for worker in workers]
    for line in tally.summary():
        print(line)
    if any(failed):
        return 2
    return int(bool(tally.violations) != bool(given.mutant))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--points", type=int, default=10_000, help="distinct kill points after which to stop")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="time after which to stop")
    parser.add_argument("--seed", type=int, default=None, help="of the random choices; another each time")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="workers side by side")
    parser.add_argument("--power", action="store_true", help="at every second death the power is lost, too")
    parser.add_argument("--errors", action="store_true", help="writes and syncs fail with EIO, too")
    parser.add_argument(
        "--mutant", choices=sorted(MUTANTS), help="kill an agent with two steps swapped, until it is found"
    )
    given = parser.parse_args()
    given.seed = int.from_bytes(os.urandom(3), "little") if given.seed is None else given.seed
    return given


def _start(
    tools: Path, given: argparse.Namespace, number: int, lines: Queue[str | None]
) -> subprocess.Popen[str]:
    options = [
        str(tools),
        str(given.seed + number),
        str(number),
        str(given.jobs),
        *(["--power"] if given.power else []),
        *(["--errors"] if given.errors else []),
    ]
    options += ["--mutant", given.mutant] if given.mutant else []
    worker = subprocess.Popen(
        [*UNSHARE, sys.executable, "-m", "tests.crash.worker", *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def read() -> None:
        for line in worker.stdout or ():
            lines.put(line.rstrip())
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return worker


def _ask_to_stop(workers: list[subprocess.Popen[str]]) -> None:
    """A worker whose stdin ends clears up after its round: killed, it would leave its cgroups."""
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.close()


if __name__ == "__main__":
    sys.exit(main())
