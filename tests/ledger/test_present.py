"""The leases in memory are those of the last commit, whoever made it. That they are is held by test_model."""

from __future__ import annotations

import sqlite3

import pytest
from ledger_builders import CARD, activated, opened, placed, released

from nodeagent.domain.errors import LedgerConflict, UnknownThing
from nodeagent.domain.lease import Anchor, AnchorKind, LeaseState, SliceState
from nodeagent.ledger.ledger import Ledger
from nodeagent.ledger.queries import Queries


def test_a_commit_shows_at_once_and_a_transaction_that_was_given_up_never(ledger: Ledger) -> None:
    """Granted, active and released leases come and go; what was undone was never there."""
    with ledger.write() as tx:
        lease = opened(tx, placed(cus="0-3"))
        assert [one.lease for one in ledger.held()] == []
        assert [one.lease for one in tx.held()] == [lease]
    assert [one.lease for one in ledger.held()] == [lease]
    with ledger.write() as tx:
        activated(tx, lease)
        assert tx.lease(lease) != ledger.lease(lease)
    assert [one.id for one in ledger.live(LeaseState.ACTIVE)] == [lease]
    with pytest.raises(ConnectionAbortedError), ledger.write() as tx:
        tx.move_lease(lease, LeaseState.RELEASING)
        raise ConnectionAbortedError
    assert [one.id for one in ledger.live(LeaseState.ACTIVE)] == [lease]
    with ledger.write() as tx:
        released(tx, lease)
    assert (ledger.held(), ledger.live(), ledger.present()) == ((), (), frozenset())
    assert ledger.lease(lease) == Queries.lease(ledger, lease)


def test_a_renewed_lease_and_a_drain_show_as_they_are(ledger: Ledger) -> None:
    """Its end is told to those who wait for it, and a drained device is granted to nobody."""
    with ledger.write() as tx:
        lease = opened(tx, placed(cus="0-3"))
        activated(tx, lease)
    with ledger.write() as tx:
        tx.set_anchor(lease, Anchor(AnchorKind.TTL, armed=True, deadline_ns=77, ttl_seconds=4))
    with ledger.write() as tx:
        tx.drain(CARD, reason=None, uid=0, until_ns=None)
    assert [one.ends_ns for one in ledger.held()] == [77]
    assert [one.device for one in ledger.drains()] == [CARD]


def test_a_lease_that_ended_unclean_is_there_until_its_slices_are_free(ledger: Ledger) -> None:
    """It holds them against everybody, though it is live no more."""
    with ledger.write() as tx:
        lease = opened(tx, placed(cus="0-3"))
        activated(tx, lease)
        tx.move_lease(lease, LeaseState.RELEASING)
        tx.move_slices(lease, SliceState.CLEANING)
        tx.move_slices(lease, SliceState.QUARANTINED)
        tx.move_lease(lease, LeaseState.FAILED)
    assert (ledger.live(), ledger.present()) == ((), {lease})
    assert [one.lease for one in ledger.held()] == [lease]
    with ledger.write() as tx:
        tx.move_slices(lease, SliceState.FREE)
    assert (ledger.held(), ledger.present()) == ((), frozenset())


def test_what_another_process_wrote_counts_in_the_next_transaction(
    ledger: Ledger, sql: sqlite3.Connection
) -> None:
    """A grant that was searched beside what is held no more, or not yet, must see so."""
    with ledger.write() as tx:
        lease = opened(tx, placed(cus="0-3"))
    sql.execute("UPDATE leases SET reason = 'said by another' WHERE id = ?", (lease,))
    with ledger.write() as tx:
        told = tx.lease(lease)
        assert told is not None and told.reason == "said by another"
    assert ledger.lease(lease) == told


def test_what_another_process_wrote_counts_though_the_next_transaction_is_undone(
    ledger: Ledger, sql: sqlite3.Connection
) -> None:
    """It was noticed in one that came to nothing: whoever reads, and the one after it, must know as well."""
    with ledger.write() as tx:
        lease = opened(tx, placed(cus="0-3"))
    sql.execute("UPDATE leases SET reason = 'said by another' WHERE id = ?", (lease,))
    with pytest.raises(UnknownThing), ledger.write() as tx:
        tx.move_lease(999, LeaseState.RELEASING)
    told = ledger.lease(lease)
    assert told is not None and told.reason == "said by another"
    with ledger.write() as tx:
        assert tx.lease(lease) == told


def test_after_a_commit_that_failed_the_rows_are_asked(ledger: Ledger) -> None:
    """What it would have changed is not there, in memory as on the disk."""
    with ledger.write() as tx:
        lease = opened(tx, placed(cus="0-3"))
    with pytest.raises(LedgerConflict), ledger.write() as tx:
        tx.move_lease(lease, LeaseState.RELEASING)
        with tx._connection() as connection:
            connection.exec_driver_sql("PRAGMA defer_foreign_keys=ON")
            connection.exec_driver_sql("INSERT INTO anchors (lease, kind, armed) VALUES (999, 'ttl', 1)")
    told = ledger.lease(lease)
    assert told == Queries.lease(ledger, lease)
    assert told is not None and told.state is LeaseState.PREPARING
