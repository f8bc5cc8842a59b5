"""One worker: rounds until its stdin ends, in the namespaces that `python -m tests.crash` made for it."""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import select
import sys
from pathlib import Path

import structlog

from . import subject
from .harness import Harness
from .mutants import MUTANTS
from .warm import warm_up


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tools", type=Path)
    parser.add_argument("seed", type=int)
    parser.add_argument("mine", type=int, help="which of")
    parser.add_argument("workers", type=int)
    parser.add_argument("--power", action="store_true")
    parser.add_argument("--errors", action="store_true")
    parser.add_argument("--mutant", choices=sorted(MUTANTS))
    given = parser.parse_args()
    mount_own()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    subject.without_threads()
    if given.mutant:
        MUTANTS[given.mutant]()
    warm_up(given.tools)
    print(f"seed {given.seed}", flush=True)
    share = (given.mine, given.workers)
    harness = Harness(
        given.tools,
        given.seed,
        share,
        power=given.power,
        errors=given.errors,
        say=lambda line: print(line, flush=True),
    )
    try:
        while not select.select([sys.stdin], [], [], 0)[0]:
            harness.round()
    finally:
        harness.close()
        print(f"rounds {harness.rounds}", flush=True)


def mount_own() -> None:
    """A /run and a /dev/shm of our own, so that whatever is in them is the agent's and goes with us."""
    libc = ctypes.CDLL(None, use_errno=True)
    for directory, mode in ((b"/run", b"mode=0755"), (b"/dev/shm", b"mode=1777")):
        if libc.mount(b"crash", directory, b"tmpfs", 0, mode):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), directory.decode())


if __name__ == "__main__":
    main()
