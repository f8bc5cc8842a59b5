"""Many writers at once, and writers that are killed."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import ledger_builders as build
from ledger_builders import opened, placed, released

from nodeagent.domain.errors import LedgerConflict
from nodeagent.domain.lease import LeaseState
from nodeagent.ledger.ledger import Ledger

WRITER = Path(__file__).parent / "ledger_writer.py"


def test_one_of_many_gets_the_cus(ledger: Ledger) -> None:
    """Of twenty threads that want the same CUs exactly one gets them; the others see LedgerConflict."""
    barrier = Barrier(20)

    def want(_: int) -> int | None:
        barrier.wait()
        try:
            with ledger.write() as tx:
                return opened(tx, placed("0-3", vram_bytes=0, queue_slots=0))
        except LedgerConflict:
            return None

    with ThreadPoolExecutor(20) as pool:
        got = [lease for lease in pool.map(want, range(20)) if lease is not None]
    assert len(got) == 1
    assert [each.lease for each in ledger.held()] == got


def test_a_crowd_that_comes_and_goes_never_overlaps(ledger: Ledger) -> None:
    """Threads that take and give back any CU in a loop never hold one together, and ids stay unique."""
    owners: dict[int, int] = {}
    overlaps: list[int] = []

    def loop(number: int) -> list[int]:
        made = []
        for turn in range(10):
            cu = (number * 7 + turn) % 5
            try:
                with ledger.write() as tx:
                    lease = opened(tx, placed(str(cu), vram_bytes=0, queue_slots=1))
            except LedgerConflict:
                continue
            made.append(lease)
            if owners.setdefault(cu, lease) != lease:
                overlaps.append(lease)
            del owners[cu]
            with ledger.write(release=True) as tx:
                released(tx, lease)
        return made

    with ThreadPoolExecutor(8) as pool:
        ids = [lease for made in pool.map(loop, range(8)) for lease in made]
    assert overlaps == []
    assert len(ids) == len(set(ids))
    assert ledger.held() == ()


def test_it_is_the_primary_key_that_refuses(ledger: Ledger, sql: sqlite3.Connection) -> None:
    """Without the primary key of held CUs the same double grant goes through: no other rule stands in."""
    columns = "device TEXT, epoch INTEGER, cu INTEGER, slice INTEGER REFERENCES slices (id)"
    sql.executescript(f"DROP TABLE held_cus; CREATE TABLE held_cus ({columns}) STRICT;")
    with ledger.write() as tx:
        opened(tx, placed("0-3"))
        opened(tx, placed("0-3"))
    assert len(ledger.held()) == 2


def test_a_killed_writer_loses_and_halves_nothing(
    path: Path, clock: build.TurnedClock, migrated: Path
) -> None:
    """After kill -9 every lease that was reported is there, whole, and every reported end too."""
    path.parent.mkdir(mode=0o700)
    (path.parent / "ledger.db").write_bytes(migrated.read_bytes())
    last = 0
    for lines in (3, 10, 25):
        told = run_and_kill(path, lines)
        assert min(lease for _, lease in told) > last
        ledger = Ledger(path, clock)
        ledger.open()
        assert ledger.health().reason is None
        assert ledger.check() == ()
        check_told(ledger, told)
        last = max(lease for _, lease in told)
        with ledger.write(release=True) as tx:
            for lease in tx.live():
                released(tx, lease.id)
        ledger.close()


def run_and_kill(path: Path, lines: int) -> list[tuple[str, int]]:
    """Let a writer report *lines* lines, kill it, and return all that it had reported."""
    with subprocess.Popen([sys.executable, WRITER, path], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        told = [writer.stdout.readline() for _ in range(lines)]
        os.kill(writer.pid, signal.SIGKILL)
        told += writer.stdout.read().splitlines(keepends=True)
    words = [line.split() for line in told if line.endswith("\n")]
    return [(word, int(lease)) for word, lease in words]


def check_told(ledger: Ledger, told: list[tuple[str, int]]) -> None:
    ended = {lease for word, lease in told if word == "released"}
    for lease_id in {lease for _, lease in told}:
        lease = ledger.lease(lease_id)
        assert lease is not None
        assert [len(each.placed.cus) for each in lease.slices] == [4, 4]
        if lease_id in ended:
            assert lease.state is LeaseState.RELEASED
