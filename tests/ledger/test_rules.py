"""What the schema refuses, whatever the code above it does."""

from __future__ import annotations

import sqlite3

import ledger_builders as build
import pytest
from ledger_builders import CARD, GIB, OTHER, activated, opened, placed, released

from nodeagent.domain.errors import IllegalMove, LedgerConflict, UnknownThing
from nodeagent.domain.lease import LEASE_MOVES, SLICE_MOVES, Anchor, AnchorKind, LeaseState, SliceState
from nodeagent.ledger.ledger import Ledger


def refused(ledger: Ledger, *slices: build.PlacedSlice, match: str) -> None:
    """A lease of *slices* is refused, and nothing of it stays."""
    before = ledger.held()
    with pytest.raises(LedgerConflict, match=match), ledger.write() as tx:
        opened(tx, *slices)
    assert ledger.held() == before


def granted(ledger: Ledger, *slices: build.PlacedSlice) -> int:
    with ledger.write() as tx:
        lease = opened(tx, *slices)
        activated(tx, lease)
    return lease


def test_no_cu_is_held_twice(ledger: Ledger) -> None:
    """A CU that a slice holds cannot be held by another one of its device and epoch."""
    granted(ledger, placed("0-7"))
    refused(ledger, placed("7-9"), match="held_cus")


def test_the_same_cu_of_another_device_is_another_cu(ledger: Ledger) -> None:
    """Two devices have each their own CU 0."""
    granted(ledger, placed("0-7"))
    granted(ledger, placed("0-7", device=OTHER))
    assert len(ledger.held()) == 2


def test_a_quarantined_slice_keeps_its_cus(ledger: Ledger) -> None:
    """A slice that is not proved clean holds its CUs, also after its lease ended, until it is free."""
    lease = granted(ledger, placed("0-7"))
    (slice_id,) = [each.id for each in ledger.held()]
    with ledger.write() as tx:
        released(tx, lease, quarantine=[slice_id])
    refused(ledger, placed("0"), match="held_cus")
    with ledger.write() as tx:
        tx.move_slices(lease, SliceState.FREE)
    granted(ledger, placed("0-7"))


def test_a_cu_must_exist(ledger: Ledger) -> None:
    """A slice cannot hold a CU that its device does not have."""
    refused(ledger, placed("31-32"), match="no such CU")


def test_a_device_must_be_registered(ledger: Ledger) -> None:
    """A slice of a device that was never registered is refused."""
    refused(ledger, placed(device="0000:c3:00.0/0"), match="FOREIGN KEY")


def test_vram_is_capped_per_pool(ledger: Ledger) -> None:
    """The slices of all devices of a pool together hold no more than it has to grant."""
    granted(ledger, placed("0", vram_bytes=40 * GIB))
    refused(ledger, placed("1", device=OTHER, vram_bytes=24 * GIB + 1), match="VRAM")
    granted(ledger, placed("1", device=OTHER, vram_bytes=24 * GIB))


def test_vram_of_one_lease_adds_up(ledger: Ledger) -> None:
    """Two slices of one lease count both."""
    halves = [placed("0", device=key, vram_bytes=33 * GIB) for key in (CARD, OTHER)]
    refused(ledger, *halves, match="VRAM")


def test_queue_slots_are_capped_per_device(ledger: Ledger) -> None:
    """The slices of a device together have no more queue slots than it."""
    granted(ledger, placed("0", queue_slots=6))
    refused(ledger, placed("1", queue_slots=3), match="queue slots")
    granted(ledger, placed("1", queue_slots=2))
    granted(ledger, placed("1", queue_slots=8, device=OTHER))


def test_nobody_joins_an_exclusive_slice(ledger: Ledger) -> None:
    """A device with an exclusive slice takes no other one."""
    granted(ledger, placed("0-3", exclusive=True))
    refused(ledger, placed("4"), match="exclusively")


def test_an_exclusive_slice_needs_an_idle_device(ledger: Ledger) -> None:
    """A device that holds any slice takes no exclusive one."""
    granted(ledger, placed("0-3"))
    refused(ledger, placed("4", exclusive=True), match="exclusively")


def test_the_shared_set_is_held_once(ledger: Ledger) -> None:
    """Shared slices of a device have the same CUs, which no other slice can hold."""
    granted(ledger, placed("0-7", shared=True))
    granted(ledger, placed("0-7", shared=True))
    refused(ledger, placed("7"), match="held_cus")
    refused(ledger, placed("8-15", shared=True), match="another shared set")


def test_the_shared_set_goes_with_its_last_sharer(ledger: Ledger) -> None:
    """The shared CUs are free again once no slice shares them, and not before."""
    first, last = (granted(ledger, placed("0-7", shared=True)) for _ in range(2))
    with ledger.write() as tx:
        released(tx, first)
    refused(ledger, placed("0"), match="held_cus")
    with ledger.write() as tx:
        released(tx, last)
    granted(ledger, placed("0-7"))


def test_a_shared_set_keeps_clear_of_held_cus(ledger: Ledger) -> None:
    """A shared set cannot take CUs that a slice holds for itself."""
    granted(ledger, placed("0-3"))
    refused(ledger, placed("0-7", shared=True), match="held_cus")


def test_a_new_epoch_has_all_its_cus(ledger: Ledger) -> None:
    """A slice of an old epoch counts in the pool, but not against the new epoch's CUs and slots."""
    granted(ledger, placed("0-31", vram_bytes=40 * GIB, queue_slots=8))
    with ledger.write() as tx:
        tx.register([build.device(epoch=1)], [])
    granted(ledger, placed("0-31", epoch=1, vram_bytes=20 * GIB, queue_slots=8))
    refused(ledger, placed("0", device=OTHER, vram_bytes=5 * GIB), match="VRAM")


def test_an_old_epoch_takes_nothing_new(ledger: Ledger) -> None:
    """Once a device has a newer epoch, no slice is held in an older one."""
    with ledger.write() as tx:
        tx.register([build.device(epoch=1)], [])
    refused(ledger, placed("0"), match="epoch")


def test_a_slice_draws_on_its_devices_pool(ledger: Ledger) -> None:
    """A slice cannot count its bytes in a pool that is not its device's."""
    with ledger.write() as tx:
        tx.register([], [build.pool("elsewhere")])
    refused(ledger, placed("0", pool="elsewhere"), match="another pool")


def test_a_shrunken_device_leaves_running_leases_alone(ledger: Ledger) -> None:
    """A rescan that finds less than is held refuses new slices and lets running ones run and end."""
    lease = granted(ledger, placed("0-31", vram_bytes=40 * GIB, queue_slots=8))
    with ledger.write() as tx:
        tx.register([build.device(cus=16, slots=2)], [build.pool(grantable_bytes=GIB)])
        tx.set_anchor(lease, Anchor(AnchorKind.TTL, armed=True, deadline_ns=9_000_000_000, ttl_seconds=4))
    refused(ledger, placed("0", device=OTHER), match="VRAM")
    with ledger.write() as tx:
        released(tx, lease)
    assert ledger.held() == ()


@pytest.mark.parametrize("origin", LeaseState)
@pytest.mark.parametrize("goal", LeaseState)
def test_only_the_domains_lease_moves_are_possible(
    ledger: Ledger, origin: LeaseState, goal: LeaseState
) -> None:
    """A lease moves where LEASE_MOVES says, and nowhere else."""
    with ledger.write() as tx:
        lease = build.lease_in(tx, origin)
    if goal in LEASE_MOVES[origin]:
        with ledger.write() as tx:
            tx.move_lease(lease, goal)
    else:
        with pytest.raises(IllegalMove), ledger.write() as tx:
            tx.move_lease(lease, goal)


@pytest.mark.parametrize("origin", SliceState)
@pytest.mark.parametrize("goal", SliceState)
def test_only_the_domains_slice_moves_are_possible(
    sql: sqlite3.Connection, ledger: Ledger, origin: SliceState, goal: SliceState
) -> None:
    """A slice moves where SLICE_MOVES says, and nowhere else."""
    granted(ledger, placed("0"))
    for state in {"held": [], "cleaning": ["cleaning"], "quarantined": ["cleaning", "quarantined"]}.get(
        origin, ["cleaning", "free"]
    ):
        sql.execute("UPDATE slices SET state = ?", (state,))
    move = ("UPDATE slices SET state = ?", (goal,))
    if goal in SLICE_MOVES[origin]:
        sql.execute(*move)
    else:
        with pytest.raises(sqlite3.IntegrityError, match="illegal move"):
            sql.execute(*move)


def test_a_move_to_free_skips_the_cleaning_only_by_mistake(ledger: Ledger) -> None:
    """A held slice cannot become free at once: that is an IllegalMove, and it stays held."""
    lease = granted(ledger, placed("0"))
    with pytest.raises(IllegalMove), ledger.write() as tx:
        tx.move_slices(lease, SliceState.FREE)
    assert [each.state for each in ledger.held()] == [SliceState.HELD]


def test_an_ended_lease_holds_nothing(ledger: Ledger) -> None:
    """A lease cannot end while a slice of it is held or being cleaned."""
    lease = granted(ledger, placed("0"))
    for state in (None, SliceState.CLEANING):
        with pytest.raises(IllegalMove, match="holds no slice"), ledger.write() as tx:
            tx.move_lease(lease, LeaseState.RELEASING)
            if state:
                tx.move_slices(lease, state)
            tx.move_lease(lease, LeaseState.FAILED)


def test_a_released_lease_is_all_free(ledger: Ledger) -> None:
    """A lease with a quarantined slice ends as failed, never as released."""
    lease = granted(ledger, placed("0"))
    with pytest.raises(IllegalMove, match="free slices only"), ledger.write() as tx:
        tx.move_lease(lease, LeaseState.RELEASING)
        tx.move_slices(lease, SliceState.CLEANING)
        tx.move_slices(lease, SliceState.QUARANTINED)
        tx.move_lease(lease, LeaseState.RELEASED)


def test_a_queued_lease_holds_nothing(ledger: Ledger) -> None:
    """Slices need a preparing lease."""
    with pytest.raises(IllegalMove, match="begins held"), ledger.write() as tx:
        opened(tx, placed("0"), state=LeaseState.QUEUED)


def test_an_active_lease_holds_every_cu(sql: sqlite3.Connection, ledger: Ledger) -> None:
    """A lease whose held CUs are not those of its slices cannot become active."""
    with ledger.write() as tx:
        lease = opened(tx, placed("0-3"))
    sql.execute("DROP TRIGGER held_cus_delete")
    sql.execute("DELETE FROM held_cus WHERE cu = 2")
    with pytest.raises(IllegalMove, match="every CU"), ledger.write() as tx:
        activated(tx, lease)


def test_a_lease_is_not_active_without_one_of_its_slices(ledger: Ledger) -> None:
    """A preparing lease that gave a slice back cannot become active."""
    with ledger.write() as tx:
        lease = opened(tx, placed("0"), placed("0", device=OTHER))
        first, _ = tx.held()
        tx.move_slices(lease, SliceState.CLEANING, only=[first.id])
    with pytest.raises(IllegalMove, match="every CU"), ledger.write() as tx:
        activated(tx, lease)


def test_a_lease_without_slices_is_never_active(ledger: Ledger) -> None:
    """An active lease has a slice."""
    with pytest.raises(IllegalMove), ledger.write() as tx:
        activated(tx, opened(tx))


def test_a_lease_id_is_never_used_again(sql: sqlite3.Connection, ledger: Ledger) -> None:
    """An id at or below the highest one ever given is refused, also when its lease is pruned."""
    with ledger.write() as tx:
        lease = build.lease_in(tx, LeaseState.QUEUED)
    row = sql.execute("SELECT * FROM leases").fetchone()
    with ledger.write() as tx:
        tx.move_lease(lease, LeaseState.CANCELLED)
    sql.execute("DELETE FROM leases")
    with pytest.raises(sqlite3.IntegrityError, match="never used again"):
        sql.execute(f"INSERT INTO leases VALUES ({','.join('?' * len(row))})", row)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM held_cus WHERE cu = 0",
        "DELETE FROM held_cus WHERE cu = 8",
        "UPDATE held_cus SET cu = 20 WHERE cu = 0",
        "DELETE FROM slices",
        "DELETE FROM leases",
        "DELETE FROM shared_sets",
        "UPDATE shared_sets SET cus = '9'",
        "UPDATE slices SET cus = ''",
        "UPDATE slices SET vram_bytes = 0",
        "UPDATE slices SET queue_slots = 0",
        "UPDATE slices SET device = '0000:c2:00.0/0'",
        "UPDATE leases SET id = id + 1000",
        "UPDATE high_water SET lease = 0",
        "DELETE FROM high_water",
        "INSERT INTO held_cus VALUES ('0000:c1:00.0/0', 0, 20, 2)",
        "INSERT INTO held_cus VALUES ('0000:c2:00.0/0', 0, 20, NULL)",
        "INSERT INTO held_cus VALUES ('0000:c2:00.0/0', 0, 20, 1)",
        "UPDATE leases SET ended_ns = 1, ended_at = 1.0",
        "UPDATE leases SET uid = 'root'",
        "DELETE FROM pools",
        "DELETE FROM devices",
    ],
)
def test_what_is_held_cannot_be_edited_away(sql: sqlite3.Connection, ledger: Ledger, statement: str) -> None:
    """No single statement takes from a live slice what it holds."""
    granted(ledger, placed("0-3"))
    granted(ledger, placed("8-15", shared=True))
    with pytest.raises(sqlite3.IntegrityError):
        sql.execute(statement)


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("UPDATE leases SET id = id + 1000", "keeps its id"),
        ("DELETE FROM slices WHERE shared = 1", "kept until it is free"),
        ("DELETE FROM leases WHERE state = 'queued'", "kept until it ended"),
    ],
)
def test_the_rules_need_no_foreign_keys(
    sql: sqlite3.Connection, ledger: Ledger, statement: str, why: str
) -> None:
    """SQLite's own shell leaves foreign keys off: the triggers alone refuse what would lose a lease."""
    granted(ledger, placed("8-15", shared=True))
    with ledger.write() as tx:
        build.lease_in(tx, LeaseState.QUEUED)
    sql.execute("PRAGMA foreign_keys=OFF")
    with pytest.raises(sqlite3.IntegrityError, match=why):
        sql.execute(statement)


@pytest.mark.parametrize("state", sorted(set(LeaseState) - {LeaseState.QUEUED, LeaseState.PREPARING}))
def test_a_lease_begins_queued_or_preparing(ledger: Ledger, state: LeaseState) -> None:
    """No lease is there at once in a state that it has to come to."""
    with pytest.raises(IllegalMove, match="begins queued or preparing"), ledger.write() as tx:
        opened(tx, state=state)
    assert ledger.leases() == ()


def test_a_move_of_no_lease_is_told(ledger: Ledger) -> None:
    """Writing to a lease that does not exist raises UnknownThing."""
    with pytest.raises(UnknownThing), ledger.write() as tx:
        tx.move_lease(7, LeaseState.RELEASING)
