"""Resets that no event told of: the kernel's dumps tell of them, and no lease ends by that."""

from __future__ import annotations

from pathlib import Path

import pytest
from service_builders import House, user
from test_uevents import Kernel, happen, reset

from nodeagent.adapters.coredumps import CLASS, dumps
from nodeagent.adapters.sysfs import SysTree
from nodeagent.domain.errors import LedgerUnavailable
from nodeagent.domain.lease import LeaseState
from nodeagent.domain.records import Event


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


def dump(root: Path, number: int, pci: str) -> Path:
    """Let the kernel write a dump of the card; the link that it makes first."""
    directory = root / CLASS / f"devcd{number}"
    directory.mkdir(parents=True)
    (directory / "failing_device").symlink_to(f"../../../devices/pci0000:00/{pci}")
    return directory


def unheard(house: House) -> list[Event]:
    return [event for event in house.ledger.events(limit=1000) if event.kind == "reset_unheard"]


def test_a_dump_that_a_start_finds_is_told_with_the_leases(build, kernel: Kernel) -> None:
    """Once, and they live on: when the reset was, the dump does not say."""
    house = build("mi210", source=kernel)
    device = house.agent.inventory().devices[0]
    lease = house.grant(user(), cus=8, device=(device.key,))
    house.die()
    dump(house.root, 3, device.pci)
    dump(house.root, 4, "ffff:00:00.0")
    again = build("mi210", source=kernel)
    again.uevents.open()
    again.look()
    again.look()
    (told,) = unheard(again)
    assert (told.device, told.data) == (device.key, {"dump": "devcd3", "leases": [lease.id]})
    assert again.state(lease.id) is LeaseState.ACTIVE
    again.die()
    once_more = build("mi210", source=kernel)
    once_more.uevents.open()
    once_more.look()
    assert len(unheard(once_more)) == 1


def test_an_overflow_looks_for_dumps(build, kernel: Kernel) -> None:
    """What was lost may have been the reset; without a loss nobody looks."""
    house = build("mi210", source=kernel)
    device = house.agent.inventory().devices[0]
    dump(house.root, 3, device.pci)
    house.look()
    assert unheard(house) == []
    happen(house, kernel, lost=True)
    assert [told.device for told in unheard(house)] == [device.key]


def test_the_dump_of_a_reset_that_was_heard_is_not_told(build, kernel: Kernel) -> None:
    """Nor after an overflow, and after a restart, that come later."""
    house = build("mi210", source=kernel)
    device = house.agent.inventory().devices[0]
    dump(house.root, 3, device.pci)
    happen(house, kernel, reset(device.pci))
    happen(house, kernel, lost=True)
    house.die()
    again = build("mi210", source=kernel)
    again.uevents.open()
    again.look()
    assert unheard(again) == []


def test_an_agent_that_hears_nothing_looks_for_dumps(build) -> None:
    """At each look: there is nothing else for it to know by."""
    house = build("mi210", source=Kernel(refuses=True))
    assert house.uevents.open() is None
    house.look()
    dump(house.root, 3, house.agent.inventory().devices[0].pci)
    house.look()
    assert len(unheard(house)) == 1


def test_a_dump_is_told_when_the_ledger_takes_it(build, kernel: Kernel, monkeypatch) -> None:
    """A ledger that is busy puts it off."""
    house = build("mi210", source=kernel)
    dump(house.root, 3, house.agent.inventory().devices[0].pci)

    def busy(**options: bool) -> None:
        raise LedgerUnavailable("busy")

    with monkeypatch.context() as patch:
        patch.setattr(house.ledger, "write", busy)
        kernel.tell(lost=True)
        house.uevents.hear()
        with pytest.raises(LedgerUnavailable):
            house.uevents.act()
    house.look()
    assert len(unheard(house)) == 1


def test_only_what_names_a_pci_function_is_a_dump(tmp_path: Path) -> None:
    """Other drivers' devices, other names and a class that is not there are nothing."""
    tree = SysTree(tmp_path)
    assert dumps(tree) == {}
    dump(tmp_path, 1, "0000:c1:00.0")
    dump(tmp_path, 2, "usb1-2")
    (tmp_path / CLASS / "disabled").write_text("0\n")
    (tmp_path / CLASS / "devcd9").mkdir()
    assert dumps(tree) == {"devcd1": "0000:c1:00.0"}
