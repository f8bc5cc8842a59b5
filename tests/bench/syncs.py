"""What durability costs a grant and a release: the syncs of one, counted by strace."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from tests.bench.clients import SMALL, Client, grant_body
from tests.bench.figures import Figure, Subject, Taken, Target, Turn
from tests.bench.serving import FLOOR, START_SECONDS, Server, numbered_agent, serving

CALLS = 40  # of each in a turn
BESIDE = "one commit"
FIGURES = (
    Figure("grant-syncs", "fdatasyncs of a grant", "", BESIDE, Target("value", 2), guarded=True),
    Figure("release-syncs", "fdatasyncs of a release, nothing running in it", "", BESIDE, guarded=True),
)


def missing() -> str | None:
    if os.geteuid() != 0 or shutil.which("strace") is None:
        return "syncs are counted by strace, as root"
    return None


@contextlib.contextmanager
def counted(pid: int, log: Path) -> Iterator[None]:
    """Have every sync of *pid*'s threads written to *log*, a line each."""
    words = ["strace", "-f", "-qq", "-e", "trace=fdatasync,fsync,sync_file_range,msync", "-e", "signal=none"]
    tracer = subprocess.Popen([*words, "-o", log, "-p", str(pid)], stderr=subprocess.DEVNULL)
    status = Path(f"/proc/{pid}/status")
    deadline = time.monotonic() + START_SECONDS
    try:
        while f"TracerPid:\t{tracer.pid}\n" not in status.read_text(encoding="utf-8"):
            if tracer.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("strace cannot attach to the agent")
            time.sleep(0.01)
        yield
    finally:
        tracer.terminate()
        tracer.wait()


def syncs(server: Server, log: Path) -> Iterator[tuple[int, int]]:
    """Those of one grant and of its release, again and again."""
    client = Client(server.socket)
    with counted(server.worker, log):

        def count() -> int:
            return log.read_text(encoding="utf-8").count(" = ")

        number = 0
        while True:
            number += 1
            at_first = count()
            _, lease = client.grant(grant_body(f"syncs-{number}", **SMALL))
            between = count()
            client.release(lease)
            yield between - at_first, count() - between


def turns() -> Iterator[Turn]:
    with ExitStack() as last:
        counts = []
        for words in (numbered_agent(last), FLOOR):
            server = last.enter_context(serving(words))
            counts.append(last.enter_context(contextlib.closing(syncs(server, server.directory / "syncs"))))
        while True:
            ours, floor = ([next(each) for _ in range(CALLS)] for each in counts)
            yield {
                figure.name: Taken([one[at] for one in ours], [one[at] for one in floor])
                for at, figure in enumerate(FIGURES)
            }


# The first turn makes the reserve, and opens a block of ids.
SUBJECTS = {
    "syncs": Subject("Syncs", FIGURES, turns, count=3, quick=1, missing=missing),
}
