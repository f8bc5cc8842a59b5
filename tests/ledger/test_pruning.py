"""What is pruned so that no user fills the disk, and what is found of what ended."""

from __future__ import annotations

import ledger_builders as build
from ledger_builders import opened, placed, released

from nodeagent.ledger.ledger import Ledger


def test_no_user_fills_the_ledger_with_ended_leases(ledger: Ledger) -> None:
    """Of each uid's ended leases the newest stay; another's do not make room for them."""
    with ledger.write() as tx:
        mine = []
        for _ in range(4):
            mine.append(opened(tx, placed("0"), uid=1000))
            released(tx, mine[-1])
        other = opened(tx, placed("0"), uid=1001)
        released(tx, other)
        assert tx.prune(leases_before=0, max_events=99, max_event_bytes=10**6, max_leases=2) == 2
    assert [each.id for each in ledger.leases()] == [*mine[2:], other]


def test_ended_leases_are_found_by_their_end(ledger: Ledger, clock: build.TurnedClock) -> None:
    """From a time on, whenever they began; live ones have not ended."""
    with ledger.write() as tx:
        ids = [opened(tx, placed(cus)) for cus in ("0", "1", "2")]
        released(tx, ids[0])
        clock.now += 100
        released(tx, ids[1])
    assert [each.id for each in ledger.leases(ended_since=clock.now - 50)] == [ids[1]]
    assert [each.id for each in ledger.leases(ended_since=0)] == ids[:2]
