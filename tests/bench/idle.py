"""What an agent takes of a node that asks nothing of it, beside the same worker with nothing behind it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

from tests.bench.clients import SMALL, Client, grant_body
from tests.bench.figures import Figure, Subject, Taken, Target, Turn
from tests.bench.processes import pss_mib, used
from tests.bench.serving import FLOOR, Server, numbered_agent, serving

SETTLE_SECONDS = 3.0  # what follows a start and a lease is over by then
SECONDS = 8.0  # of a turn
BESIDE = "gunicorn alone"
FIGURES = (
    Figure("idle-processor", "processor time of an idle agent", "% of a core", BESIDE, Target("value", 0.2)),
    Figure("idle-wakeups", "wake-ups of an idle agent", "a second", BESIDE, Target("above", 2)),
    Figure("memory", "memory of agent and arbiter (PSS)", "MiB", BESIDE, Target("value", 100), guarded=True),
)


def taken(names: tuple[str, str, str], ours: Server, floor: Server, seconds: float) -> Turn:
    """One look at both for the same *seconds*, in which nobody asks; figures by the three *names*."""
    time.sleep(SETTLE_SECONDS)
    both = (ours.pids, floor.pids)
    before = [used(pids) for pids in both]
    time.sleep(seconds)
    since = [used(pids) - old for pids, old in zip(both, before, strict=True)]
    columns = (
        [one.seconds / seconds * 100 for one in since],
        [one.wakeups / seconds for one in since],
        [pss_mib(pids) for pids in both],
    )
    return {name: Taken([mine], [least]) for name, (mine, least) in zip(names, columns, strict=True)}


def lease(server: Server) -> None:
    """One grant and its release: what is made at the first call is made."""
    client = Client(server.socket)
    _, granted = client.grant(grant_body("first", **SMALL))
    client.release(granted)


def turns() -> Iterator[Turn]:
    with ExitStack() as last:
        ours, floor = (last.enter_context(serving(words)) for words in (numbered_agent(last), FLOOR))
        for server in (ours, floor):
            lease(server)
        while True:
            yield taken(("idle-processor", "idle-wakeups", "memory"), ours, floor, SECONDS)


SUBJECTS = {"idle": Subject("An idle agent", FIGURES, turns, count=4, warm=0, quick=1)}
