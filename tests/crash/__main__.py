"""`python -m tests.crash`: kill agents at their system calls, and say what was found. See docs/crash.md."""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import tempfile
import time
from pathlib import Path

from . import subject
from .harness import Harness
from .mutants import MUTANTS
from .tracing import build_tracer

ALONE = "NODEAGENT_CRASH_ALONE"
UNSHARE = ("unshare", "--mount", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--points", type=int, default=10_000, help="distinct kill points after which to stop")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="time after which to stop")
    parser.add_argument("--seed", type=int, default=None, help="of the random choices; any by default")
    parser.add_argument("--power", action="store_true", help="lose the power at each kill, not the process alone")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="kill an agent with two steps swapped instead")
    parser.add_argument("--stop-at", type=int, default=None, help="violations after which to stop")
    given = parser.parse_args()
    if ALONE not in os.environ:
        os.execvpe(
            UNSHARE[0],
            [*UNSHARE, sys.executable, "-m", "tests.crash", *sys.argv[1:]],
            {**os.environ, ALONE: "1"},
        )
    alone()
    subject.without_threads()
    if given.mutant:
        MUTANTS[given.mutant]()
    seed = given.seed if given.seed is not None else int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        harness = Harness(
            build_tracer(Path(directory)), seed, power=given.power, say=lambda line: print(line, flush=True)
        )
        end = time.monotonic() + given.seconds
        try:
            while len(harness.tally.kills) < given.points and time.monotonic() < end:
                harness.round()
                if given.stop_at is not None and len(harness.tally.violations) >= given.stop_at:
                    break
        finally:
            harness.close()
    for line in harness.tally.lines():
        print(line)
    return 1 if harness.tally.violations else 0


def alone() -> None:
    """A /run and a /dev/shm of our own, so that whatever is in them is the agent's and goes with us."""
    libc = ctypes.CDLL(None, use_errno=True)
    for directory in (b"/run", b"/dev/shm"):
        if libc.mount(b"crash", directory, b"tmpfs", 0, b"mode=0755"):
            raise OSError(ctypes.get_errno(), "mount", directory.decode())


if __name__ == "__main__":
    sys.exit(main())
