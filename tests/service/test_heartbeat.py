"""Signs of life: none without a step of the reconciler and an answer of the API."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from nodeagent.service.heartbeat import ASK_SECONDS, GRACE_SECONDS, Heartbeat


@dataclass
class Told:
    why: str | None = None


@dataclass
class House:
    """A heart with a clock, an API and a service manager of its own."""

    answers: bool = True
    why: str | None = None
    now: float = 1000.0
    reachable: bool = True
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.heart = Heartbeat(self, self.poll, watchdog_seconds=180, monotonic=lambda: self.now)

    def tell(self, *lines: str) -> bool:
        if self.reachable:
            self.said += lines
        return self.reachable

    def poll(self) -> Told | None:
        return Told(self.why) if self.answers else None

    def beats(self, seconds: float, every: float = 1.0) -> list[str]:
        """What is said while the reconciler works on for so long."""
        self.said.clear()
        for _ in range(int(seconds / every)):
            self.now += every
            self.heart.beat()
        return self.said


def test_ready_comes_with_the_first_answer_that_grants() -> None:
    """READY=1 once, with a status; then signs of life only."""
    house = House()
    assert house.beats(1) == ["WATCHDOG=1", "READY=1", "STATUS=granting"]
    assert set(house.beats(60)) == {"WATCHDOG=1"}


def test_no_answer_no_sign() -> None:
    """An API that hangs is given up by systemd, however well the reconciler does."""
    house = House(answers=False)
    assert house.beats(600) == []


def test_no_step_no_sign() -> None:
    """Nothing but a step that ended sends one: the API's answers alone say nothing of the reconciler."""
    house = House()
    house.beats(10)
    house.said.clear()
    house.now += 600
    assert house.said == []


def test_the_signs_are_few() -> None:
    """The API is asked every few seconds, not at every step."""
    house = House()
    house.beats(10)
    signs = house.beats(60, every=0.05)
    assert len(signs) <= 60 / ASK_SECONDS + 1


def test_an_agent_that_does_not_grant_says_why_and_lives() -> None:
    """It is not ready and not dead; after the grace it counts as started, for it still ends leases."""
    house = House(why="the ledger takes no grants:\ndisk full")
    said = house.beats(GRACE_SECONDS - 2)
    assert "READY=1" not in said
    assert "WATCHDOG=1" in said
    assert [line for line in said if line.startswith("STATUS")] == [
        "STATUS=not granting: the ledger takes no grants: disk full"
    ]
    assert "READY=1" in house.beats(3)
    house.why = None
    assert "STATUS=granting" in house.beats(10)


def test_ready_is_said_again_until_it_is_heard() -> None:
    """A message that systemd did not take is not counted as told."""
    house = House(reachable=False)
    house.beats(10)
    house.reachable = True
    assert "READY=1" in house.beats(10)


@pytest.mark.parametrize("watchdog", [4.0, 180.0, None])
def test_the_period_fits_the_watchdog(watchdog: float | None) -> None:
    """At least three signs in the time that systemd waits, also where a site shortened it."""
    house = House()
    house.heart = Heartbeat(house, house.poll, watchdog_seconds=watchdog, monotonic=lambda: house.now)
    house.beats(1)
    signs = house.beats(watchdog or 60, every=0.25).count("WATCHDOG=1")
    assert signs >= 3


def test_each_step_of_the_reconciler_beats(house) -> None:
    """One that fails, too, for it ended; so a look that takes long is not taken for one that hangs."""
    beats: list[str] = []
    house.reconciler._beat = lambda: beats.append("beat")

    def fails() -> None:
        raise OSError("a disk")

    house.reconciler._guarded(lambda: None, "works")
    house.reconciler._guarded(fails, "fails")
    assert len(beats) == 2
    house.reconciler.run_once()
    assert len(beats) > 4
