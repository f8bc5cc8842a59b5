"""A node that has lived: 640 live leases on its devices, and 10,000 that ended in its ledger."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path

from nodeagent.wiring import LEDGER
from tests.bench.clients import Client, grant_body
from tests.bench.figures import Figure, Subject, Taken, Target, Turn
from tests.bench.idle import taken
from tests.bench.serving import FLOOR, Server, forget, laid_out, scratch, started

LIVE, PAST = 640, 10_000
MACHINE = "mi300x-cpx"  # 63 devices
TINY = {"cus": 3, "vram_bytes": 1 << 30, "shape": "exact", "queue_slots": 1}  # ten fit on each device
SETTINGS = '[devices]\nshares = {"*" = 16}\n'
PAGE = 500  # the largest
LIVE_STATES = "queued,preparing,active,lost,releasing,failed"
# What the dashboard asks for at each of its looks.
DASHBOARD = (
    "/v1/node",
    "/v1/devices",
    f"/v1/leases?state={LIVE_STATES}&limit={PAGE}&after=0",
    f"/v1/leases?state={LIVE_STATES}&limit={PAGE}&after={PAGE}",
    "/v1/events?newest=100",
)
CALLS = 10  # of each in a turn
IDLE_SECONDS = 4.0
NOTHING = "GET of nothing"
START = "gunicorn's start to a floor's grant"
ON = f"{LIVE} leases, 63 devices"
FIGURES = (
    Figure("start", f"exec to first grant: {ON}, {PAST:,} past", "s", START, Target("value", 2)),
    Figure("start-empty", "the same, empty ledger", "s", START),
    Figure("grant-lived", f"grant, {ON}", "ms", "on an empty node", Target("ratio", 1.3), guarded=True),
    Figure("release-lived", f"release, {ON}", "ms", "on an empty node", guarded=True),
    Figure("list", f"`GET /v1/leases`, 100 a page: {ON}", "ms", NOTHING, Target("value", 20), guarded=True),
    Figure("list-500", f"the same, a page of {PAGE}", "ms", NOTHING, guarded=True),
    Figure("devices", f"`GET /v1/devices`: {ON}", "ms", NOTHING, guarded=True),
    Figure("metrics", f"`GET /metrics`: {ON}", "ms", NOTHING, Target("value", 50), guarded=True),
    Figure("dashboard", f"a look of the dashboard, five calls: {ON}", "ms", "five of nothing", guarded=True),
    Figure("lived-processor", f"processor time of an idle agent: {ON}", "% of a core", "gunicorn alone"),
    Figure("lived-wakeups", f"wake-ups of an idle agent: {ON}", "a second", "gunicorn alone"),
    Figure("lived-memory", f"PSS: {ON}", "MiB", "gunicorn alone", Target("value", 100), guarded=True),
)


@contextlib.contextmanager
def lived(words: Sequence[str]) -> Iterator[Path]:
    """The directory of an agent that has lived and was stopped; its leases' cgroups and files are there."""
    with scratch() as directory:
        try:
            with started(words, directory) as server:
                client = Client(server.socket)
                _, pattern = client.grant(grant_body("pattern", **TINY))
                client.release(pattern)
                for number in range(LIVE):
                    client.grant(grant_body(f"live-{number}", **TINY))
            copy_ended(directory / "state" / LEDGER, pattern, PAST)
            yield directory
        finally:
            forget(directory / "state")


def copy_ended(database: Path, pattern: int, times: int) -> None:
    """Write the lease *pattern*, its journal and its events as if so many had lived and ended like it.

    The triggers would have each of them live through its states, 15 statements a lease.
    """
    with closing(sqlite3.connect(database)) as connection:
        triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        (last,) = connection.execute("SELECT max(id) FROM leases").fetchone()
        numbers = f"WITH RECURSIVE n(i) AS (VALUES(1) UNION ALL SELECT i + 1 FROM n WHERE i < {times})"
        for table in ("leases", "slices", "anchors", "effects", "events"):
            key = "id" if table == "leases" else "lease"
            names = [f'"{row[1]}"' for row in connection.execute(f"PRAGMA table_info({table})")]
            kept = ", ".join(name for name in names if name.strip('"') not in ("id", key))
            connection.execute(
                f"{numbers} INSERT INTO {table} ({key}, {kept}) SELECT {last} + i, {kept} FROM {table}, n"
                f" WHERE {key} = {pattern}"
            )
        connection.execute("UPDATE high_water SET lease = ?", (last + times,))
        for _, statement in triggers:
            connection.execute(statement)
        connection.commit()


@contextlib.contextmanager
def first_grant(words: Sequence[str], directory: Path, request_id: str) -> Iterator[tuple[float, Server]]:
    """A server that has just granted something for the first time, and the seconds since its exec."""
    began = time.monotonic()
    with started(words, directory) as server:
        client = Client(server.socket)
        _, lease = client.grant(grant_body(request_id, **TINY))
        took = time.monotonic() - began
        client.release(lease)
        yield took, server


def turns() -> Iterator[Turn]:
    with ExitStack() as last:
        words = last.enter_context(laid_out(MACHINE, SETTINGS))
        empty, floor = (last.enter_context(scratch()) for _ in range(2))
        places = ((words, last.enter_context(lived(words))), (words, empty), (FLOOR, floor))
        last.callback(forget, empty / "state")
        last.callback(forget, floor / "state")
        for number in count():
            with ExitStack() as turn:
                found = [turn.enter_context(first_grant(*place, f"first-{number}")) for place in places]
                (full, ours), (few, other), (least, beside) = found
                yield {
                    "start": Taken([full], [least]),
                    "start-empty": Taken([few], [least]),
                    **calls(number, *(Client(server.socket) for server in (ours, other, beside))),
                    **taken(("lived-processor", "lived-wakeups", "lived-memory"), ours, beside, IDLE_SECONDS),
                }


def calls(number: int, ours: Client, empty: Client, floor: Client) -> Turn:
    """Calls to the three in turns."""
    targets = {
        "list": ("/v1/leases",),
        "list-500": (f"/v1/leases?limit={PAGE}",),
        "devices": ("/v1/devices",),
        "metrics": ("/metrics",),
        "dashboard": DASHBOARD,
    }
    found: dict[str, tuple[list[float], list[float]]] = {
        name: ([], []) for name in (*targets, "grant-lived", "release-lived")
    }
    for turn in range(CALLS):
        for name, each in targets.items():
            found[name][0].append(sum(ours.get(target) for target in each))
            found[name][1].append(sum(floor.get("/nothing") for _ in each))
        body = grant_body(f"turn-{number}-{turn}", **TINY)
        for side, client in enumerate((ours, empty)):
            took, lease = client.grant(body)
            found["grant-lived"][side].append(took)
            found["release-lived"][side].append(client.release(lease))
    return {name: Taken(*pair) for name, pair in found.items()}


SUBJECTS = {"lived": Subject("A node with many leases", FIGURES, turns, count=5, quick=2)}
