"""What lies beside the database survives power loss, and nobody else can swap it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import ledger_builders as build
import pytest

from nodeagent.domain.errors import OutsideFault
from nodeagent.ledger.backup import backup
from nodeagent.ledger.files import others_may_write, write_durably
from nodeagent.ledger.ledger import Ledger

STRANGER = 54_321


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Every fsync and replace in order: ("file" or "directory", bytes in the file then), ("replace", 0)."""
    seen: list[tuple[str, int]] = []
    fsync: Callable[[int], None] = os.fsync
    replace = Path.replace

    def record_fsync(descriptor: int) -> None:
        directory = Path(f"/proc/self/fd/{descriptor}").is_dir()
        seen.append(("directory", 0) if directory else ("file", os.fstat(descriptor).st_size))
        fsync(descriptor)

    def record_replace(self: Path, target: Path) -> Path:
        seen.append(("replace", 0))
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(Path, "replace", record_replace)
    return seen


def test_a_file_is_synced_before_its_name_and_the_name_after_it(
    tmp_path: Path, synced: list[tuple[str, int]]
) -> None:
    """Power loss at any point leaves the old or the new content: the mark of lease ids never goes back."""
    write_durably(tmp_path / "ids", "1000\n")
    assert synced == [("file", 5), ("replace", 0), ("directory", 0)]
    assert (tmp_path / "ids").read_text() == "1000\n"


def test_a_backup_is_synced_whole_with_its_name(
    ledger: Ledger, path: Path, tmp_path: Path, synced: list[tuple[str, int]]
) -> None:
    """A backup that was reported made is there after power loss."""
    backup(path, tmp_path / "copy")
    assert synced == [("file", (tmp_path / "copy").stat().st_size), ("directory", 0)]


@pytest.mark.root
def test_another_users_directory_is_no_place_for_the_ledger_or_a_backup(
    ledger: Ledger, path: Path, tmp_path: Path, clock: build.TurnedClock
) -> None:
    """Its owner may write there whatever its mode says."""
    foreign = tmp_path / "foreign"
    foreign.mkdir(mode=0o700)
    os.chown(foreign, STRANGER, STRANGER)
    assert others_may_write(foreign)
    with pytest.raises(OutsideFault, match="others can write"):
        backup(path, foreign / "copy")
    elsewhere = Ledger(foreign / "ledger.db", clock)
    elsewhere.open()
    assert "others can write" in str(elsewhere.health().reason)
    elsewhere.close()
    assert list(foreign.iterdir()) == []
