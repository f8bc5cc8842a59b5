"""On a full disk nothing is granted and everything is released."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import ledger_builders as build
import pytest
from ledger_builders import CARD, activated, opened, placed, released

from nodeagent.domain.errors import LedgerUnavailable
from nodeagent.domain.records import EffectState
from nodeagent.ledger.faults import DiskFull
from nodeagent.ledger.ledger import Ledger
from nodeagent.ledger.reserve import Reserve


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m,mode=0700", "tmpfs", mount], check=True)
    yield mount
    subprocess.run(["umount", mount], check=True)


def fill(disk: Path) -> Path:
    """Take every last byte."""
    hog = disk / "hog"
    with hog.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"\0" * (1 << 20))
    with hog.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"\0" * 512)
    assert os.statvfs(disk).f_bavail == 0
    return hog


@pytest.fixture
def full(disk: Path, clock: build.TurnedClock) -> Iterator[tuple[Ledger, Path, list[int]]]:
    """A ledger with 200 live leases, on a disk that has just become full."""
    ledger = Ledger(disk / "ledger.db", clock)
    ledger.open()
    with ledger.write() as tx:
        tx.register([build.device(cus=200, slots=200)], [build.pool(grantable_bytes=200 * build.GIB)])
    leases = []
    for cu in range(200):
        with ledger.write() as tx:
            lease = opened(tx, placed(str(cu)))
            tx.plan_effect(lease, "cgroup", {"path": "x" * 100})
            activated(tx, lease)
        leases.append(lease)
    fill(disk)
    yield ledger, disk, leases
    ledger.close()


def grant(ledger: Ledger) -> None:
    for _ in range(200):  # the write-ahead log may still have room in it for some
        with ledger.write() as tx:
            tx.event("granted", uid=1, data={"x": "y" * 8000})


def end(ledger: Ledger, lease: int) -> None:
    """Release as the service does: several transactions, each journaled and told."""
    with ledger.write(release=True) as tx:
        released(tx, lease)
        for effect in tx.effects(lease):
            tx.mark_effect(effect.id, EffectState.UNDONE, {"seen": "y" * 100})
        tx.event("released", uid=1, lease=lease, device=CARD, reason="asked", data={"x": "y" * 100})


@pytest.mark.root
def test_every_release_works_on_a_full_disk(full: tuple[Ledger, Path, list[int]]) -> None:
    """Hundreds of releases go through, each at the first try, and the ledger stays sound."""
    ledger, _, leases = full
    for lease in leases:
        end(ledger, lease)
    assert ledger.held() == ()
    assert ledger.check() == ()


@pytest.mark.root
def test_no_grant_eats_what_is_kept_for_releases(full: tuple[Ledger, Path, list[int]]) -> None:
    """After the reserve is given up, grants are refused with the reason while releases go on."""
    ledger, _, leases = full
    with pytest.raises(LedgerUnavailable):
        grant(ledger)
    end(ledger, leases[0])
    with pytest.raises(LedgerUnavailable, match="releases work"):
        grant(ledger)
    assert "releases work" in str(ledger.health().reason)
    for lease in leases[1:]:
        end(ledger, lease)
    assert ledger.held() == ()


@pytest.mark.root
def test_a_start_on_a_full_disk_releases(full: tuple[Ledger, Path, list[int]]) -> None:
    """An agent that starts on a full disk still reads and releases."""
    ledger, _, leases = full
    ledger.close()
    ledger.open()
    assert len(ledger.held()) == len(leases)
    end(ledger, leases[0])
    assert len(ledger.held()) == len(leases) - 1


@pytest.mark.root
def test_grants_return_with_the_space(full: tuple[Ledger, Path, list[int]]) -> None:
    """When the disk has room again, the reserve is made again and grants work."""
    ledger, disk, leases = full
    end(ledger, leases[0])
    assert not ledger.health().writable
    (disk / "hog").unlink()
    assert ledger.health().writable
    with ledger.write() as tx:
        opened(tx, placed("0"))
    assert (disk / "reserve").stat().st_size == 8 << 20


@pytest.mark.root
def test_a_first_start_on_a_full_disk_waits_for_space(disk: Path, clock: build.TurnedClock) -> None:
    """Where not even the schema fits, the ledger says so, and works without a restart once there is room."""
    hog = fill(disk)
    ledger = Ledger(disk / "ledger.db", clock)
    ledger.open()
    assert not ledger.health().writable
    with pytest.raises(LedgerUnavailable), ledger.write():
        pass
    hog.unlink()
    with ledger.write() as tx:
        tx.event("started", uid=None)
    assert ledger.health().writable
    ledger.close()


def test_space_that_ends_within_a_release_is_given_at_the_next_try(
    path: Path, clock: build.TurnedClock
) -> None:
    """SQLITE_FULL in a release gives up the reserve, so that trying again has room."""
    ledger = Ledger(path, clock, reserve=Reserve(path.with_name("reserve"), size=4096, room=0))
    ledger.open()
    with ledger.write():
        pass
    with pytest.raises(DiskFull), ledger.write(release=True) as tx:
        with tx._connection() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
        for _ in range(20):
            tx.event("released", uid=1, data={"x": "y" * 8000})
    assert not path.with_name("reserve").exists()
    assert ledger.events() == ()
    ledger.close()
