"""Lease ids grow and are never given twice."""

from __future__ import annotations

import shutil
from pathlib import Path

import ledger_builders as build
import pytest
from ledger_builders import opened, placed, released

from nodeagent.domain.errors import LedgerUnavailable
from nodeagent.ledger.ids import BLOCK, IdBlocks
from nodeagent.ledger.ledger import Ledger


def one(ledger: Ledger) -> int:
    """Grant and release one lease; its id."""
    with ledger.write() as tx:
        lease = opened(tx, placed("0"))
        released(tx, lease)
    return lease


def test_ids_count_up_across_blocks(tmp_path: Path) -> None:
    """Within a start ids have no gaps, and the mark on disk is never below one that was given."""
    ids = IdBlocks(tmp_path / "ids")
    for expected in range(1, 2 * BLOCK + 2):
        assert ids.take(expected - 1) == expected
        assert int((tmp_path / "ids").read_text()) >= expected


@pytest.mark.parametrize(("mark", "floor", "above", "first"), [(7, 0, 0, 8), (0, 7, 0, 8), (0, 0, 7, 8)])
def test_a_start_is_above_mark_floor_and_database(
    tmp_path: Path, mark: int, floor: int, above: int, first: int
) -> None:
    """The first id of a start is above whichever is highest of file, floor and database."""
    (tmp_path / "ids").write_text(f"{mark}\n")
    ids = IdBlocks(tmp_path / "ids")
    ids.start(floor)
    assert ids.take(above) == first


def test_a_mark_that_is_no_number_gives_no_ids(tmp_path: Path) -> None:
    """A damaged mark stops new leases, naming the file and the way out."""
    (tmp_path / "ids").write_text("x1\n")
    with pytest.raises(LedgerUnavailable, match="write the highest lease id"):
        IdBlocks(tmp_path / "ids").take(0)


def test_a_mark_that_cannot_be_written_gives_no_ids(tmp_path: Path) -> None:
    """No id is given whose block is not on disk."""
    with pytest.raises(LedgerUnavailable, match="No such file"):
        IdBlocks(tmp_path / "gone" / "ids").take(0)


def test_every_start_opens_a_new_block(ledger: Ledger) -> None:
    """After a restart the next id is above the whole block of the last start."""
    first = one(ledger)
    ledger.open()
    assert one(ledger) == first + 1000
    ledger.open(floor=77_000)
    assert one(ledger) == 77_001


def test_a_restored_backup_reuses_no_id(ledger: Ledger, path: Path) -> None:
    """When an old copy of the database is put back, ids go on above those given since."""
    one(ledger)
    ledger.close()
    shutil.copy(path, path.with_name("copy"))
    ledger.open()
    since = [one(ledger) for _ in range(3)]
    ledger.close()
    shutil.copy(path.with_name("copy"), path)
    ledger.open()
    assert one(ledger) > max(since)


def test_a_lost_mark_reuses_no_id(ledger: Ledger, path: Path) -> None:
    """Without the file, ids go on above the database's highest, also after its leases are pruned."""
    last = [one(ledger) for _ in range(3)][-1]
    with ledger.write() as tx:
        assert tx.prune(leases_before=build.TurnedClock().now + 1, max_events=0, max_event_bytes=0) == 3
    ledger.close()
    path.with_name("ids").unlink()
    ledger.open()
    assert one(ledger) == last + 1


def test_a_lease_undone_costs_its_id(ledger: Ledger) -> None:
    """The id of a transaction that failed is not given again."""
    with pytest.raises(KeyError), ledger.write() as tx:
        gone = opened(tx, placed("0"))
        raise KeyError
    assert one(ledger) > gone
