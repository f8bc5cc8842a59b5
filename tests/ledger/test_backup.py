"""A backup is a whole, private copy, and goes nowhere but where it was sent."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path

import ledger_builders as build
import pytest
from ledger_builders import opened, placed

from nodeagent.domain.errors import LedgerUnavailable, OutsideFault
from nodeagent.ledger.backup import backup
from nodeagent.ledger.ledger import Ledger


def test_a_backup_is_a_ledger(ledger: Ledger, path: Path, tmp_path: Path, clock: build.TurnedClock) -> None:
    """A backup of a ledger in use holds what was committed, and opens as a ledger."""
    with ledger.write() as tx:
        opened(tx, placed())
    with ledger.write() as tx:
        opened(tx, placed("4"))
        backup(path, tmp_path / "copy.db")
    copy = Ledger(tmp_path / "copy.db", clock)
    copy.open()
    assert copy.held() == ledger.held()[:1]
    copy.close()


def test_a_backup_is_private(ledger: Ledger, path: Path, tmp_path: Path) -> None:
    """A backup is mode 0600 whatever the umask."""
    umask = os.umask(0)
    try:
        backup(path, tmp_path / "copy")
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "copy").stat().st_mode) == 0o600


@pytest.mark.parametrize("kind", ["file", "link", "dangling link", "directory"])
def test_a_backup_overwrites_nothing(ledger: Ledger, path: Path, tmp_path: Path, kind: str) -> None:
    """An existing target, also a symbolic link to nowhere, is refused and left as it is."""
    target = tmp_path / "target"
    victim = tmp_path / "victim"
    if kind == "file":
        target.write_text("mine")
    elif kind == "directory":
        target.mkdir()
    else:
        target.symlink_to(victim)
        if kind == "link":
            victim.write_text("")
    with pytest.raises(OutsideFault, match="exists already"):
        backup(path, target)
    assert not victim.exists() or victim.read_text() == ""


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
def test_a_backup_stays_out_of_shared_directories(
    ledger: Ledger, path: Path, tmp_path: Path, mode: int
) -> None:
    """Where others could swap the file while it is made, or lay a journal beside it, no backup is made."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    with pytest.raises(OutsideFault, match="others can write"):
        backup(path, shared / "copy")
    with pytest.raises(OutsideFault, match="No such file"):
        backup(path, tmp_path / "nowhere" / "copy")


def test_a_failed_backup_leaves_no_file(tmp_path: Path) -> None:
    """A source that is no database leaves no target behind."""
    (tmp_path / "garbage").write_bytes(b"x" * 5000)
    with pytest.raises(LedgerUnavailable):
        backup(tmp_path / "garbage", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_half_made_backup_does_not_look_like_one(
    ledger: Ledger, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it is whole it has another name, so a death leaves none to restore; the next try clears up."""
    seen: list[set[str]] = []

    def die(source: Path, target: Path) -> None:
        seen.append({each.name for each in tmp_path.glob("*copy*")})
        raise OSError("died")

    left = tmp_path / ".copy.part-journal"
    left.write_text("of a try that died")
    with monkeypatch.context() as dying, pytest.raises(OSError, match="died"):
        dying.setattr("nodeagent.ledger.backup._copy", die)
        backup(path, tmp_path / "copy")
    assert seen == [{".copy.part"}] and not left.exists()
    backup(path, tmp_path / "copy")
    assert {each.name for each in tmp_path.glob("*copy*")} == {"copy"}


def test_two_backups_at_once_to_one_file_make_no_half_one(
    ledger: Ledger, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one whose file was taken away says so, and gives its name to nothing."""

    def second(source: Path, target: Path) -> None:
        target.unlink()
        target.touch()

    monkeypatch.setattr("nodeagent.ledger.backup._copy", second)
    with pytest.raises(OutsideFault, match="another backup"):
        backup(path, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_copy_that_is_not_sound_is_no_backup(ledger: Ledger, path: Path, tmp_path: Path) -> None:
    """Rows that contradict each other are told now, not on the day of the restore; no file is left."""
    with ledger.write() as tx:
        opened(tx, placed())
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("DROP TRIGGER held_cus_delete")
    other.execute("DELETE FROM held_cus WHERE cu = 2")
    other.close()
    with pytest.raises(OutsideFault, match=r"not sound: slice 1 of lease .* says 4 CUs and holds 3"):
        backup(path, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
