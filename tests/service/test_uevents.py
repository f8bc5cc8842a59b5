"""What becomes of leases when the kernel announces that a card was reset, or came or went."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import pytest
from service_builders import House, admin, come_back, outside, until, user, vanish
from service_world import TurnedClock

from nodeagent.adapters.uevents import Heard
from nodeagent.config import Release
from nodeagent.domain.device import DeviceState
from nodeagent.domain.errors import LedgerUnavailable
from nodeagent.domain.lease import AnchorKind, LeaseState, SliceState
from nodeagent.domain.uevents import Uevent


@dataclass
class Kernel:
    """A source that tells what a test lets happen."""

    told: list[Heard] = field(default_factory=list)
    refuses: bool = False
    reader: int = -1
    writer: int = -1

    def open(self) -> int:
        if self.refuses:
            raise outside()
        self.reader, self.writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        os.write(self.writer, b"x" * len(self.told))
        return self.reader

    def read(self) -> Heard:
        if not self.told:
            return Heard()
        if self.writer != -1:
            os.read(self.reader, 1)
        return self.told.pop(0)

    def close(self) -> None:
        if self.writer != -1:
            os.close(self.reader)
            os.close(self.writer)
            self.writer = -1

    def tell(self, *events: Uevent, lost: bool = False) -> None:
        self.told.append(Heard(events, lost))
        if self.writer != -1:
            os.write(self.writer, b"x")


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


def reset(pci: str, **told: Any) -> Uevent:
    return Uevent("change", "drm", f"/devices/pci0000:00/{pci}/drm/card0", pci=pci, wedged="none", **told)


def gone(pci: str) -> Uevent:
    return Uevent("remove", "drm", f"/devices/pci0000:00/{pci}/drm/card0", pci=pci)


def happen(house: House, kernel: Kernel, *events: Uevent, lost: bool = False) -> bool | None:
    """Let the watcher's thread hear *events*, and the reconciler act on them."""
    kernel.tell(*events, lost=lost)
    concerns = house.uevents.hear()
    house.look()
    return concerns


def scans(house: House) -> int:
    return [event.kind for event in house.ledger.events(limit=1000)].count("rescanned")


def test_a_reset_loses_exactly_its_leases(build, kernel: Kernel) -> None:
    """Every lease of the card ends as lost, with the guilty task; those on other devices never notice."""
    house = build("mi210", source=kernel)
    device, other = house.agent.inventory().devices[:2]
    first = house.grant(user(), cus=8, device=(device.key,))
    second = house.grant(user(1001), cus=8, device=(device.key,))
    neighbour = house.grant(user(), cus=8, device=(other.key,))
    before = house.ledger.lease(neighbour.id)
    assert happen(house, kernel, reset(device.pci, pid=4711, task="train.py"))
    for lease in (first, second):
        assert house.kinds(lease) == ["granted", "lost", "released"]
        assert house.ledger.lease(lease.id).reason == f"device {device.key} was reset after train.py (4711)"
    assert house.ledger.lease(neighbour.id) == before
    assert house.kinds(neighbour) == ["granted"]
    (told,) = [event for event in house.ledger.events() if event.kind == "device_reset"]
    assert told.device == device.key
    assert told.data == {
        "recovery": "none",
        "pid": 4711,
        "task": "train.py",
        "leases": [first.id, second.id],
    }


def test_a_lease_of_several_devices_is_lost_with_one(build, kernel: Kernel) -> None:
    """It is one right to all of them; the other device's other leases go on."""
    house = build("mi210", source=kernel)
    device, other = house.agent.inventory().devices[:2]
    both = house.grant(user(), cus=8, count=2, device=(device.key, other.key))
    neighbour = house.grant(user(), cus=8, device=(other.key,))
    happen(house, kernel, reset(device.pci))
    assert house.ledger.lease(both.id).reason == f"device {device.key} was reset"
    assert house.state(neighbour.id) is LeaseState.ACTIVE


def test_the_partitions_of_a_card_are_reset_together(build, kernel: Kernel) -> None:
    """One PCI function is several devices: each is told of; another card's are not."""
    house = build("mi300x-cpx", source=kernel)
    devices = house.agent.inventory().devices
    mine = [device for device in devices if device.pci == devices[0].pci]
    assert len(mine) > 1
    other = next(device for device in devices if device.pci != mine[0].pci)
    lost = [house.grant(user(), cus=2, device=(device.key,)) for device in mine[:2]]
    neighbour = house.grant(user(), cus=2, device=(other.key,))
    happen(house, kernel, reset(mine[0].pci))
    assert {house.state(lease.id) for lease in lost} == {LeaseState.RELEASED}
    assert house.state(neighbour.id) is LeaseState.ACTIVE
    told = [event.device for event in house.ledger.events(limit=1000) if event.kind == "device_reset"]
    assert sorted(told) == sorted(device.key for device in mine)


def test_a_hive_is_reset_card_by_card(build, kernel: Kernel) -> None:
    """Each card of a hive announces its own reset, and each loses its leases."""
    house = build("mi210", source=kernel)
    device, other, third = house.agent.inventory().devices[:3]
    leases = [house.grant(user(), cus=8, device=(one.key,)) for one in (device, other, third)]
    happen(house, kernel, reset(device.pci), reset(other.pci))
    states = [house.state(lease.id) for lease in leases]
    assert states == [LeaseState.RELEASED, LeaseState.RELEASED, LeaseState.ACTIVE]


def test_a_device_is_granted_again_after_its_reset(build, kernel: Kernel) -> None:
    """Its state is what its files say, before and after; a lease that is younger is not lost."""
    house = build("mi210", source=kernel)
    device = house.agent.inventory().devices[0]
    kernel.tell(reset(device.pci))
    house.uevents.hear()
    house.clock.turn(0.001)
    young = house.grant(user(), cus=8, device=(device.key,))
    house.look()
    assert house.state(young.id) is LeaseState.ACTIVE
    assert house.agent.device(device.key).state is DeviceState.HEALTHY


def test_a_device_that_is_sick_after_its_reset_is_not_granted(build, kernel: Kernel) -> None:
    """A reset is followed by a scan, though KFD says nothing of a change."""
    house = build("mi210", source=kernel)
    device = house.agent.inventory().devices[0]
    (house.root / "sys/bus/pci/devices" / device.pci / "mem_info_vram_total").write_text("garbage")
    house.look()
    assert house.agent.device(device.key).state is DeviceState.HEALTHY
    happen(house, kernel, reset(device.pci))
    assert house.agent.device(device.key).state is DeviceState.UNHEALTHY


def test_a_slice_is_proved_clean_after_a_reset(build, kernel: Kernel, children) -> None:
    """The memory of a process that lives on is not free because its device was reset."""
    house = build("mi210", source=kernel)
    device = house.agent.inventory().devices[0]
    child = children.sleeper()
    lease = house.grant(user(pid=child.pid), cus=8, device=(device.key,), anchor=AnchorKind.PROCESS)
    (house.root / "sys/class/kfd/kfd/proc" / str(child.pid)).mkdir(parents=True)
    happen(house, kernel, reset(device.pci))
    assert house.state(lease.id) is LeaseState.FAILED
    assert house.ledger.lease(lease.id).slices[0].state is SliceState.QUARANTINED
    assert child.poll() is None


@pytest.mark.cgroup2
def test_the_processes_of_a_lost_lease_get_its_signal(build, tree, kernel: Kernel, children) -> None:
    """The site's on_lost reaches those of the lost lease, and nobody beside them."""
    release = Release(grace_seconds=60, on_lost="SIGUSR2")
    house = build("mi210", tree=tree, timeout=20, source=kernel, config={"release": release})
    device, other = house.agent.inventory().devices[:2]
    mine, theirs = children.sleeper(), children.sleeper()
    for child, where in ((mine, device), (theirs, other)):
        lease = house.grant(admin(), cus=8, device=(where.key,))
        house.enter(lease, child.pid)
    happen(house, kernel, reset(device.pci))
    assert mine.wait(20) == -12
    assert theirs.poll() is None


def test_a_card_that_is_not_ours_is_no_matter(build, kernel: Kernel) -> None:
    """Another driver's card, or one that is not granted from, ends nothing and is not told of."""
    house = build("mi210", source=kernel)
    lease = house.grant(user(), cus=8)
    happen(house, kernel, reset("ffff:00:00.0"))
    assert house.state(lease.id) is LeaseState.ACTIVE
    assert "device_reset" not in [event.kind for event in house.ledger.events()]


def test_a_reset_is_not_forgotten_while_the_ledger_is_sick(
    build, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could not be written is done at the next look."""
    house = build("mi210", source=kernel)
    device = house.agent.inventory().devices[0]
    lease = house.grant(user(), cus=8, device=(device.key,))

    def sick(**_: Any) -> Any:
        raise LedgerUnavailable("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(house.ledger, "write", sick)
        happen(house, kernel, reset(device.pci))
    assert house.state(lease.id) is LeaseState.ACTIVE
    house.look()
    assert house.state(lease.id) is LeaseState.RELEASED


def test_a_device_that_went_is_found_gone_at_once(build, kernel: Kernel) -> None:
    """Though KFD's generation says nothing: the event alone makes the agent look."""
    house = build("mi210", source=kernel)
    device = house.agent.inventory().devices[0]
    lease = house.grant(user(), cus=8, device=(device.key,))
    vanish(house.root, device.kfd_node)
    house.look()
    assert house.state(lease.id) is LeaseState.ACTIVE
    happen(house, kernel, gone(device.pci))
    assert house.kinds(lease) == ["granted", "lost", "quarantined"]
    come_back(house.root, device.kfd_node)


def test_lost_events_are_made_up_for_by_a_scan(build, kernel: Kernel) -> None:
    """An overflow is as good as an announcement of everything but a reset."""
    house = build("mi210", source=kernel)
    device = house.agent.inventory().devices[0]
    vanish(house.root, device.kfd_node)
    assert happen(house, kernel, lost=True)
    assert house.agent.device(device.key).state is DeviceState.GONE


def test_a_storm_of_events_scans_once_a_second_and_writes_nothing(
    build, kernel: Kernel, clock: TurnedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What users can make the kernel tell costs neither disk nor more than its share of time."""
    house = build("mi210", source=kernel)
    looks: list[int] = []
    look = house.survey.look_again
    monkeypatch.setattr(house.survey, "look_again", lambda: looks.append(1) or look())
    before = scans(house)
    for _ in range(20):
        happen(house, kernel, gone("ffff:00:00.0"))
    assert len(looks) == 1
    clock.turn(1)
    house.look()
    assert len(looks) == 2
    assert scans(house) == before


def test_other_events_do_not_wake(build, kernel: Kernel) -> None:
    """Most of what the kernel tells concerns no GPU."""
    house = build("mi210", source=kernel)
    assert happen(house, kernel, Uevent("add", "net", "/devices/virtual/net/veth0")) is False


def test_the_watcher_hears_and_the_reconciler_acts(build, kernel: Kernel) -> None:
    """From a readable socket to a lease that ended, by the agent's own threads."""
    house = build("mi210", source=kernel)
    device = house.agent.inventory().devices[0]
    lease = house.grant(user(), cus=8, device=(device.key,))
    house.reconciler.start()
    kernel.tell(reset(device.pci))
    until(lambda: house.state(lease.id) is LeaseState.RELEASED)


def test_what_waited_is_heard_before_anything_is_granted(build, kernel: Kernel) -> None:
    """A reset while one worker was replaced by another ends the leases of then, and none that came after."""
    house = build("mi210", source=kernel)
    device = house.agent.inventory().devices[0]
    lease = house.grant(user(), cus=8, device=(device.key,))
    kernel.tell(reset(device.pci))
    house.uevents.open()
    house.clock.turn(1)
    later = house.grant(user(), cus=8, device=(device.key,))
    house.uevents.hear()
    house.look()
    assert house.ledger.lease(lease.id).reason == f"device {device.key} was reset"
    assert house.state(later.id) is LeaseState.ACTIVE


def test_an_agent_that_hears_nothing_goes_on(build) -> None:
    """Without a socket the period finds what changed."""
    house = build("mi210", source=Kernel(refuses=True))
    lease = house.grant(user(), cus=8, ttl=100)
    house.reconciler.start()
    house.clock.turn(101)
    until(lambda: house.state(lease.id) is LeaseState.RELEASED)
