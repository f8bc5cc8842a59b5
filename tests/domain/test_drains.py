"""How long drains last, whatever the clocks do."""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.domain.drains import carried, over
from nodeagent.domain.records import Drain

START = 1_800_000_000.0


@dataclass
class Clocks:
    """Both clocks of a node, turned apart."""

    boot_id: str = "a"
    up: float = 1000.0
    now: float = START

    def boot_ns(self) -> int:
        return int(self.up * 1e9)

    def wall(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.up += seconds
        self.now += seconds

    def reboot(self, down: float = 60.0) -> None:
        self.boot_id, self.up = self.boot_id + "x", 10.0
        self.now += down


def drain(clocks: Clocks, seconds: float | None = 3600) -> Drain:
    if seconds is None:
        return Drain("node", None, 0, None, clocks.boot_id, clocks.now)
    until_ns = clocks.boot_ns() + int(seconds * 1e9)
    return Drain("node", None, 0, until_ns, clocks.boot_id, clocks.now, clocks.now + seconds)


def test_in_one_boot_the_wall_clock_does_not_count() -> None:
    """A step of it, either way, neither ends nor lengthens a drain."""
    clocks = Clocks()
    one = drain(clocks)
    for step in (-1e6, 2e6):
        clocks.now += step
        assert over(one, clocks) is None
    clocks.pass_by(3600)
    assert over(one, clocks) == "its time is up"


def test_its_wall_clock_end_follows_a_step() -> None:
    """So that a clock which was wrong at the start of the node does not count after the next one."""
    clocks = Clocks(now=0.0)  # no battery
    one = drain(clocks)
    assert carried(one, clocks) is None
    clocks.now = START
    moved = carried(one, clocks)
    assert moved is not None and moved.until_at == START + 3600
    assert moved.until_ns == one.until_ns
    assert carried(moved, clocks) is None


def test_a_reboot_leaves_what_is_left() -> None:
    """The time that the node was down counts."""
    clocks = Clocks()
    one = drain(clocks)
    clocks.pass_by(600)
    clocks.reboot(down=1000)
    assert over(one, clocks) is None
    new = carried(one, clocks)
    assert new is not None and new.boot_id == clocks.boot_id
    assert new.until_ns == int((10 + 2000) * 1e9)
    assert over(new, clocks) is None
    clocks.pass_by(2000)
    assert over(new, clocks) == "its time is up"


def test_one_whose_end_passed_while_the_node_was_down_is_over() -> None:
    """It ends at the first look."""
    clocks = Clocks()
    one = drain(clocks)
    clocks.reboot(down=3601)
    assert "rebooted" in (over(one, clocks) or "")


def test_a_clock_that_went_back_over_a_reboot_gives_no_more_than_the_whole_time() -> None:
    """A node without a battery must not be drained for fifty years."""
    clocks = Clocks()
    one = drain(clocks)
    clocks.reboot()
    clocks.now = 0.0
    new = carried(one, clocks)
    assert new is not None and new.until_ns == int((10 + 3600) * 1e9)


def test_one_without_an_end_stays() -> None:
    """Whatever happens to the clocks."""
    clocks = Clocks()
    one = drain(clocks, None)
    clocks.reboot(1e9)
    assert over(one, clocks) is None
    new = carried(one, clocks)
    assert new is not None and new.until_ns is None and carried(new, clocks) is None


def test_one_of_an_older_ledger_ends_with_its_boot() -> None:
    """It has no end on the wall clock."""
    clocks = Clocks()
    one = Drain("node", None, 0, clocks.boot_ns() + 10**12, clocks.boot_id, clocks.now)
    assert over(one, clocks) is None
    clocks.reboot()
    assert "rebooted" in (over(one, clocks) or "")
    assert carried(one, clocks) is None
