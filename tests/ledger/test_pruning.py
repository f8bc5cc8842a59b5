"""What is pruned so that no user fills the disk."""

from __future__ import annotations

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
