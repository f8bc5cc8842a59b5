"""Modes by holder kind, and a bypass as it is written down and ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.domain.errors import InvalidField
from nodeagent.domain.lease import HolderKind
from nodeagent.domain.mode import Bypass, Mode, Modes, bypass_for, bypass_of, text_of


class Turned:
    """A clock that a test turns."""

    boot_id = "0b5d6b0e-3b1c-4f5e-9d4a-111111111111"
    now = 100.0

    def boot_ns(self) -> int:
        return int(self.now * 1e9)

    def wall(self) -> float:
        return 1.8e9


def test_what_the_site_says_nothing_of_is_enforced() -> None:
    """Observe is a choice, kind by kind."""
    modes = Modes({HolderKind.SLURM: Mode.OBSERVE})
    assert modes.observed == (HolderKind.SLURM,)
    assert modes.of(HolderKind.CLIENT) is Mode.ENFORCE
    assert Modes().observed == ()


def test_a_bypass_ends_by_itself_and_with_its_boot() -> None:
    """It counts boot time, so no step of the wall clock moves its end."""
    clock = Turned()
    bypass = bypass_for(60, uid=0, reason="kernel bug", clock=clock)
    assert bypass.holds(clock) and bypass.left_seconds(clock) == 60
    clock.now += 59
    assert bypass.holds(clock)
    clock.now += 1
    assert not bypass.holds(clock) and bypass.left_seconds(clock) == 0
    clock.now, clock.boot_id = 10.0, "0b5d6b0e-3b1c-4f5e-9d4a-222222222222"
    assert not bypass.holds(clock)


def test_a_bypass_is_read_back_as_it_was_written() -> None:
    """What the scripts need stands in the first two lines."""
    bypass = bypass_for(60, uid=1000, reason='why = "so" $(x) `y`', clock=Turned())
    assert bypass_of(text_of(bypass)) == bypass
    assert text_of(bypass).splitlines()[:2] == [f"boot_id={bypass.boot_id}", "until=160"]


@pytest.mark.parametrize(
    ("seconds", "reason"),
    [
        (0, "x"),
        (-1, "x"),
        (8 * 86_400, "x"),
        (60, ""),
        (60, "a\nuntil=9"),
        (60, "\x1b[1m"),
        (60, "ü"),
        (60, "x" * 201),
    ],
)
def test_a_bypass_without_end_or_reason_is_none(seconds: int, reason: str) -> None:
    """Nor one whose reason is more than a line of plain text."""
    with pytest.raises(InvalidField):
        bypass_for(seconds, uid=0, reason=reason, clock=Turned())


GOOD = text_of(Bypass(Turned.boot_id, 160, 0, 1, "x"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        GOOD[:-1],
        GOOD + "more=1\n",
        GOOD.replace("160", ""),
        GOOD.replace("160", "1e9"),
        GOOD.replace("160", "-1"),
        GOOD.replace("\n", "\r\n"),
        GOOD.replace("reason=x", "reason="),
        GOOD.replace("boot_id", "Boot_id"),
        "\0" + GOOD,
    ],
)
def test_half_a_bypass_is_none(text: str) -> None:
    """Every line has to be there, in order and form."""
    with pytest.raises(InvalidField):
        bypass_of(text)


def test_bypasses_differ_by_their_end() -> None:
    """A changed end is another bypass: it is told again."""
    one = bypass_of(GOOD)
    assert one != replace(one, until_s=161)
