"""Grant and release by one client and by a crowd, beside a server that does the least that both must do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

from tests.bench.clients import crowd
from tests.bench.figures import Figure, Subject, Taken, Target, Turn, quantile
from tests.bench.serving import FLOOR, numbered_agent, serving

CROWDS = {1: 1.5, 8: 2.0, 32: 3.0, 64: 4.0}  # clients, and seconds of each server in a turn
BESIDE = "no-op POST, one commit, the cgroup"


def figures(clients: int) -> tuple[Figure, ...]:
    of = "one client" if clients == 1 else f"{clients} clients"
    found = []
    for verb in ("grant", "release"):
        target = Target("ratio", 2) if (verb, clients) == ("grant", 1) else None
        name = f"{verb}-{clients}"
        found.append(Figure(name, f"{verb}, {of}", "ms", BESIDE, target, guarded=clients in (1, 8)))
        target = Target("ratio", 3) if (verb, clients) == ("grant", 64) else None
        found.append(Figure(f"{name}-p99", f"99th percentile of a {verb}, {of}", "ms", "its median", target))
    return tuple(found)


def turns(clients: int, seconds: float) -> Iterator[Turn]:
    with ExitStack() as last:
        ours, floor = (last.enter_context(serving(words)) for words in (numbered_agent(last), FLOOR))
        while True:
            took, least = (crowd(one.socket, clients, seconds) for one in (ours, floor))
            turn = {}
            for verb, values, beside in (
                ("grant", took.grants, least.grants),
                ("release", took.releases, least.releases),
            ):
                turn[f"{verb}-{clients}"] = Taken(values, beside)
                p99, p50 = quantile(values, 0.99), quantile(values, 0.5)
                turn[f"{verb}-{clients}-p99"] = Taken([p99], [p50])
            yield turn


def subject(clients: int, seconds: float) -> Subject:
    made: Callable[[], Iterator[Turn]] = partial(turns, clients, seconds)
    who = "one client" if clients == 1 else f"{clients} clients at once"
    return Subject(f"Grant and release, {who}", figures(clients), made, count=5, quick=2)


SUBJECTS = {f"clients-{clients}": subject(clients, seconds) for clients, seconds in CROWDS.items()}
