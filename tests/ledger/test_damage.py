"""A sick ledger grants nothing, says why, and never stops the agent."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path

import ledger_builders as build
import pytest
from ledger_builders import opened, placed

from nodeagent.domain.errors import LedgerUnavailable
from nodeagent.ledger import checks
from nodeagent.ledger.ledger import Ledger


def sick(ledger: Ledger, why: str) -> None:
    """The ledger opens, says *why* it takes no writes, and refuses them, releases too."""
    ledger.open()
    health = ledger.health()
    assert not health.writable
    assert why in str(health.reason)
    for release in (False, True):
        with pytest.raises(LedgerUnavailable), ledger.write(release=release):
            pass
    ledger.close()


def test_a_fresh_ledger_is_private_and_sound(path: Path, clock: build.TurnedClock) -> None:
    """The directory is 0700 and every file in it 0600, whatever the umask."""
    umask = os.umask(0)
    ledger = Ledger(path, clock)
    try:
        ledger.open()
        with ledger.write() as tx:
            tx.register([build.device()], [build.pool()])
            opened(tx, placed())
    finally:
        os.umask(umask)
    assert ledger.check() == ()
    assert ledger.health().writable
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert {stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()} == {0o600}
    assert {each.name for each in path.parent.iterdir()} >= {"ledger.db", "ids", "reserve"}
    ledger.close()


@pytest.mark.parametrize("content", [b"not a database at all", b"SQLite format 3\0" + b"\xff" * 9000])
def test_garbage_is_no_ledger(path: Path, clock: build.TurnedClock, content: bytes) -> None:
    """A file of something else is left as it is; reads raise LedgerUnavailable."""
    path.parent.mkdir(mode=0o700)
    path.write_bytes(content)
    ledger = Ledger(path, clock)
    sick(ledger, "ledger")
    ledger.open()
    with pytest.raises(LedgerUnavailable):
        ledger.held()
    ledger.close()
    assert path.read_bytes() == content


@pytest.mark.parametrize("cut", [0.3, 0.6, 0.9])
def test_a_truncated_ledger_is_read_only(ledger: Ledger, path: Path, cut: float) -> None:
    """A database that lost its end is found damaged at start."""
    ledger.close()
    size = path.stat().st_size
    os.truncate(path, int(size * cut) // 4096 * 4096)
    sick(ledger, "")


def test_damage_within_pages_is_found_at_start(ledger: Ledger, path: Path) -> None:
    """Overwritten pages are found by the check at start, not by a grant."""
    ledger.close()
    with path.open("r+b") as file:
        file.seek(4096 * 2)
        file.write(b"\xa5" * 4096 * 20)
    sick(ledger, "ledger")


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("DELETE FROM held_cus WHERE cu = 2", "says 4 CUs and holds 3"),
        ("INSERT INTO held_cus VALUES ('0000:c2:00.0/0', 0, 7, NULL)", "is held by nothing"),
        ("DELETE FROM boots", "missing row of boots"),
    ],
)
def test_rows_that_contradict_each_other_are_damage(
    ledger: Ledger, path: Path, statement: str, why: str
) -> None:
    """Rows that no transaction of ours can leave are found at start; reads still work."""
    with ledger.write() as tx:
        opened(tx, placed())
    ledger.close()
    other = sqlite3.connect(path, isolation_level=None)
    for name in ("held_cus_delete", "held_cus_owner"):
        other.execute(f"DROP TRIGGER {name}")
    other.execute(statement)
    other.close()
    sick(ledger, why)
    ledger.open()
    assert len(ledger.held()) == 1
    ledger.close()


def test_damage_met_by_a_write_makes_the_ledger_read_only(ledger: Ledger, path: Path) -> None:
    """Once SQLite reports damage, no later write is tried."""
    ledger.close()
    ledger.open()
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(LedgerUnavailable, match="damaged"), ledger.write() as tx:
        opened(tx, placed())
    assert not ledger.health().writable
    with pytest.raises(LedgerUnavailable), ledger.write(release=True):
        pass
    assert ledger.check() != ()


def test_a_disk_that_fails_under_the_check_is_no_damage(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opened on it the ledger takes no writes; once the disk works, it does without being opened again."""

    def failing(connection: sqlite3.Connection) -> tuple[str, ...]:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_WRITE
        raise error

    with monkeypatch.context() as disk:
        disk.setattr(checks, "problems", failing)
        ledger.open()
        assert "disk failed" in str(ledger.health().reason)
        with pytest.raises(LedgerUnavailable), ledger.write(release=True):
            pass
    with ledger.write(release=True) as tx:
        tx.event("started", uid=None)
    assert ledger.health().writable


def test_a_newer_ledger_is_left_alone(ledger: Ledger, path: Path) -> None:
    """A database of a later version is not touched, and the reason says what to do."""
    ledger.close()
    other = sqlite3.connect(path)
    other.execute("UPDATE alembic_version SET version_num = '9999'")
    other.commit()
    other.close()
    sick(ledger, "newer than this version")


def test_another_programs_database_is_left_alone(path: Path, clock: build.TurnedClock) -> None:
    """A database that is not a ledger gets no tables of ours."""
    path.parent.mkdir(mode=0o700)
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE bookmarks (url TEXT)")
    other.close()
    sick(Ledger(path, clock), "no ledger of the agent")


def test_a_directory_that_others_write_is_refused(path: Path, clock: build.TurnedClock) -> None:
    """Nobody else may be able to swap the ledger's files."""
    path.parent.mkdir()
    path.parent.chmod(0o777)
    sick(Ledger(path, clock), "chmod 0700")


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path, clock: build.TurnedClock) -> None:
    """An impossible state directory is a reason, not a crash."""
    (tmp_path / "file").write_text("")
    sick(Ledger(tmp_path / "file" / "state" / "ledger.db", clock), "Not a directory")


def test_a_directory_as_database_is_told(path: Path, clock: build.TurnedClock) -> None:
    """A directory in the database's place is a reason, not a crash."""
    path.mkdir(parents=True, mode=0o700)
    path.parent.chmod(0o700)
    sick(Ledger(path, clock), "no regular file")


def test_a_lost_directory_is_told(ledger: Ledger, path: Path) -> None:
    """A mended ledger works again once it is opened again."""
    ledger.close()
    path.rename(path.with_name("aside"))
    path.write_bytes(b"x" * 100)
    sick(ledger, "no database")
    path.unlink()
    path.with_name("aside").rename(path)
    ledger.open()
    assert ledger.health().writable
    ledger.close()
