"""Before the first scan nobody knows of any device: none is gone, and none is free."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from service_builders import House, admin, order_of

from nodeagent.domain.errors import LedgerUnavailable
from nodeagent.domain.lease import Lease, LeaseState
from nodeagent.ledger import ledger
from nodeagent.ledger.faults import DiskFull
from nodeagent.ledger.ledger import Ledger
from nodeagent.ledger.transaction import Transaction


class Disk:
    """Fails where the ledger is asked for the epochs of devices, or is to take a scan, as long as told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fails = self.fills = False
        registered, register = Ledger.registered, Transaction.register

        def failing(ledger: Ledger):
            if self.fails:
                raise DiskFull("the disk failed")
            return registered(ledger)

        def full(tx: Transaction, *scan: Any) -> None:
            if self.fills:
                raise DiskFull("the disk is full")
            register(tx, *scan)

        monkeypatch.setattr(Ledger, "registered", failing)
        monkeypatch.setattr(Transaction, "register", full)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def lease(house: House) -> Lease:
    """A lease whose agent then died."""
    granted = house.grant(cus=8)
    house.die()
    return granted


def test_a_device_that_nobody_looked_for_is_not_gone(lease: Lease, build, disk: Disk) -> None:
    """A start whose disk fails ends no lease, and the first look that gets through goes on as ever."""
    disk.fails = True
    house = build()
    house.look()
    assert house.state(lease.id) is LeaseState.ACTIVE
    assert house.agent.node().pools == ()
    with pytest.raises(LedgerUnavailable, match="not scanned yet"):
        house.agent.inventory()
    with pytest.raises(LedgerUnavailable, match="not scanned yet"):
        house.agent.grant(admin(), order_of(cus=8))
    disk.fails = False
    house.look()
    assert house.state(lease.id) is LeaseState.ACTIVE
    assert house.grant(cus=8).slices[0].placed.cus != lease.slices[0].placed.cus


def test_a_release_waits_for_the_first_scan(lease: Lease, build, disk: Disk) -> None:
    """It is not quarantined for a device that nobody looked for; with the scan its slice is free."""
    disk.fails = True
    house = build()
    assert house.agent.release(admin(), lease.id, 0.3).state is LeaseState.RELEASING
    house.reconciler.run_once()
    assert house.state(lease.id) is LeaseState.RELEASING
    disk.fails = False
    house.look()
    assert house.state(lease.id) is LeaseState.RELEASED


def test_a_ledger_without_a_schema_gets_one_when_the_disk_works(build, monkeypatch) -> None:
    """A first start on a disk that fails needs no other: a look migrates what cannot be read."""
    first = build()
    first.die()
    for path in first.spool.parent.glob("ledger*"):
        path.unlink()

    def failing(path: Path) -> None:
        path.touch(mode=0o600)
        raise DiskFull("the disk failed")

    with monkeypatch.context() as disk:
        disk.setattr(ledger, "migrate", failing)
        house = build()
        assert "the disk failed" in str(house.agent.unready())
    house.look()
    assert house.agent.unready() is None
    house.grant(cus=8)


def test_nothing_is_granted_of_devices_that_the_ledger_does_not_know(build, disk: Disk) -> None:
    """A scan that it could not take is no reason to refuse a request for good: 503, until it has."""
    disk.fills = True
    house = build()
    assert len(house.agent.inventory().devices) == 2
    with pytest.raises(LedgerUnavailable, match="did not take the last scan"):
        house.agent.grant(admin(), order_of(cus=8))
    disk.fills = False
    house.look()
    assert house.agent.unready() is None
    house.grant(cus=8)
