"""Events that repeat are one that counts; none is kept for ever."""

from __future__ import annotations

import ledger_builders as build
from ledger_builders import CARD

from nodeagent.domain.clock import SECOND_NS
from nodeagent.ledger.ledger import Ledger


def test_the_same_event_again_is_one_that_counts(ledger: Ledger, clock: build.TurnedClock) -> None:
    """Within ten minutes a repeat takes the earlier one's place, with a new id, and how often since when."""
    first, said = clock.now, {"uid": 7, "lease": 3, "device": CARD, "reason": "again", "data": {"a": 1}}
    with ledger.write() as tx:
        ids = [tx.event("renewed", **said), tx.event("renewed", **{**said, "reason": "other"})]
    clock.now, clock.now_ns = clock.now + 599, clock.now_ns + 599 * SECOND_NS
    with ledger.write() as tx:
        ids.append(tx.event("renewed", **said))
    other, folded = ledger.events()
    assert (other.id, other.count) == (ids[1], 1)
    assert (folded.id, folded.count, folded.first_at, folded.at) == (ids[2], 2, first, first + 599)
    assert ids == sorted(set(ids))
    clock.now_ns += 601 * SECOND_NS
    with ledger.write() as tx:
        tx.event("renewed", **said)
    assert [each.count for each in ledger.events()] == [1, 2, 1]


def test_events_of_another_boot_are_others(ledger: Ledger, clock: build.TurnedClock) -> None:
    """Boot time begins anew, so that what came before a reboot is never close."""
    with ledger.write() as tx:
        tx.event("refused", uid=7)
    clock.boot_id = "another"
    with ledger.write() as tx:
        tx.event("refused", uid=7)
    assert [each.count for each in ledger.events()] == [1, 1]


def test_events_are_pruned_by_age(ledger: Ledger, clock: build.TurnedClock) -> None:
    """What is older than the site keeps goes, however little there is."""
    with ledger.write() as tx:
        tx.event("granted", uid=1, lease=1)
        clock.now += 100
        young = tx.event("granted", uid=1, lease=2)
        tx.prune(leases_before=0, max_events=99, max_event_bytes=10**6, events_before=clock.now - 50)
    assert [each.id for each in ledger.events()] == [young]


def test_what_happens_once_is_never_folded(ledger: Ledger) -> None:
    """Two starts of the agent in a minute are two, and so is what only looks the same."""
    with ledger.write() as tx:
        for _ in range(2):
            tx.event("started", uid=None)
        tx.event("refused", uid=7, reason="a")
        tx.event("refused", uid=8, reason="a")
        tx.event("refused", uid=None, reason="a")
    assert [each.count for each in ledger.events()] == [1, 1, 1, 1, 1]
