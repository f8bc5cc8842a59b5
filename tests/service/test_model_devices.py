"""The model of the service on a node whose devices vanish, return, are partitioned, and whose clock jumps."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test
from service_builders import admin, come_back, touch_generation, vanish
from service_model import Known, ServiceMachine

from nodeagent.domain.errors import NotAllowed
from nodeagent.domain.lease import LeaseState

LONG_STEPS = 100_000
counted: Counter[str] = Counter()


class DeviceMachine(ServiceMachine):
    """As before, with a tree of its own for each run, because the node changes."""

    machine: Path
    node = "mi210"  # each device has a PCI address of its own, also when another is away

    @initialize()
    def begin(self) -> None:
        self.generation, self.lost = 100, ""
        self.root = Path(str(shutil.copytree(self.machine, self.scratch(), symlinks=True)))
        super().begin()
        self.places = {one.key: (one.kfd_node, one.pci) for one in self.house.agent.inventory().devices}

    def scratch(self) -> Path:
        counted["runs"] += 1
        return self.machine.with_name(f"{self.machine.name}-{counted['runs']}")

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.root, ignore_errors=True)

    def check_invariants(self, *given: object, **named: object) -> None:
        counted["steps"] += 1
        super().check_invariants(*given, **named)  # type: ignore[misc]

    def changed(self) -> None:
        """Have the agent see another node."""
        self.generation += 1
        touch_generation(self.root, self.generation)
        self.look()

    def device(self, number: int) -> str:
        return sorted(self.places)[number % len(self.places)]

    def lose_leases(self, device: str, *, gone: bool) -> None:
        """What becomes of those that held something of *device*: its slices stay held while it is away."""
        for lease_id, known in list(self.known.items()):
            mine = [part for part in known.held if part[0] == device]
            if known.state is LeaseState.ACTIVE and mine and lease_id not in self.granted_now:
                known.state = LeaseState.FAILED
                if not known.attached:
                    known.held = mine if gone else []
                if not known.held:
                    del self.known[lease_id]

    @precondition(lambda self: not self.missing)
    @rule(number=st.integers(0, 7))
    def lose(self, number: int) -> None:
        """A device falls off the bus: its leases end, what they held of it is not granted."""
        self.lost, self.missing = self.device(number), True
        vanish(self.root, self.places[self.lost][0])
        self.changed()
        self.lose_leases(self.lost, gone=True)

    @precondition(lambda self: self.missing)
    @rule()
    def find(self) -> None:
        """It is back, and what was held for it is proved free, but under a process."""
        come_back(self.root, self.places[self.lost][0])
        self.missing = False
        self.changed()
        self.prove()
        self.known = {
            lease_id: known
            for lease_id, known in self.known.items()
            if known.state is not LeaseState.FAILED or known.attached
        }

    def prove(self) -> None:
        for held in self.house.ledger.quarantined():
            self.house.releaser.retry(held.lease).result(10)

    @precondition(lambda self: not self.missing)
    @rule(number=st.integers(0, 7))
    def partition(self, number: int) -> None:
        """A device is partitioned anew, which opens another epoch: what was held of the old one is lost."""
        key = self.device(number)
        file = self.root / "sys/bus/pci/devices" / self.places[key][1] / "current_memory_partition"
        file.write_text("NPS1\n" if file.exists() and file.read_text() == "NPS4\n" else "NPS4\n")
        before = self.house.agent.device(key).epoch
        self.past |= {
            (i, key) for i, known in self.known.items() if any(part[0] == key for part in known.held)
        }
        self.changed()
        self.lose_leases(key, gone=False)
        assert self.house.agent.device(key).epoch == before + 1

    @rule()
    def reboot(self) -> None:
        """What was held of a device that is away stays held until it is back; all else is free."""
        left = {
            lease_id: mine
            for lease_id, known in self.known.items()
            if (mine := [part for part in known.held if self.missing and part[0] == self.lost])
        }
        super().reboot()
        self.known = {lease_id: Known(LeaseState.FAILED, False, held=mine) for lease_id, mine in left.items()}

    @rule(number=st.integers(0, 20))
    def renew(self, number: int) -> None:
        """A lease that lives by time does so from now on, another does not begin to."""
        lease_id = self.pick(number, LeaseState.ACTIVE)
        if lease_id is not None:
            try:
                self.house.agent.renew(admin(), lease_id)
                assert self.known[lease_id].expires
            except NotAllowed:
                assert not self.known[lease_id].expires

    @rule(seconds=st.sampled_from((-1e9, -3600.0, 3600.0, 1e9)))
    def jump(self, seconds: float) -> None:
        """The wall clock is for display: nothing ends by it."""
        self.clock.now = max(1.0, self.clock.now + seconds)
        self.look()


@pytest.mark.timeout(6 * 3600)
def test_no_sequence_of_a_nodes_mishaps_breaks_the_service(
    migrated: Path, materialised: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Devices lost and found and jumps of the clock leave ledger and sets in agreement, too."""
    thorough = settings().max_examples > 100
    members = {"migrated": migrated, "machine": materialised("mi210")}
    kind = type("Machine", (DeviceMachine,), members)
    few = settings(max_examples=12, stateful_step_count=20)
    many = settings(max_examples=LONG_STEPS // 40, stateful_step_count=50)
    counted.clear()
    run_state_machine_as_test(kind, settings=many if thorough else few)
    while thorough and counted["steps"] < LONG_STEPS:
        run_state_machine_as_test(kind, settings=many)
    with capsys.disabled():
        print(f"\nmodel of the service: {counted['steps']} steps in {counted['runs']} runs")
