"""The doctor as a whole: on every machine, whatever hangs or breaks, as root or not."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from nodeagent.adapters import machine
from nodeagent.doctor import GATHER, look
from nodeagent.domain.doctor import CHECKS, Level
from nodeagent.domain.doctor.cards import Cards
from nodeagent.domain.doctor.driver import Driver

# One card's topology eight times over, and a copy without DRM: the doctor sees that no node is like that.
UNLIKE_A_NODE = ("mi300x-spx", "vega10")
BROKEN = ("looking at it failed", "the check itself failed")


@pytest.mark.parametrize("name", machine.names())
def test_every_shipped_machine_is_looked_at(node: Any, name: str) -> None:
    """Each check has something to say of each machine, and none of them breaks."""
    findings = look(node.is_a(name).scene())
    assert [one.name for one in findings] == [one.name for one in CHECKS]
    assert [one.text for one in findings if one.text.startswith(BROKEN)] == []
    levels = {one.name: one.level for one in findings}
    assert levels["devices-found"] == levels["partitions-stable"] == Level.OK
    assert (levels["device-mapping"] is Level.OK) == (name not in UNLIKE_A_NODE)


def test_an_empty_tree_is_looked_at(node: Any) -> None:
    """Without a GPU, without cgroups and without an agent there is still a line for each check."""
    findings = look(node.scene())
    assert len(findings) == len(CHECKS)
    assert [one.text for one in findings if one.text.startswith(BROKEN)] == []


def test_what_breaks_breaks_its_own_checks(node: Any) -> None:
    """A kind of facts that cannot be gathered fails its checks, and leaves the others theirs."""

    def broken(scene: Any) -> object:
        raise PermissionError(13, "denied", "/sys/x")

    findings = look(node.scene(), {**GATHER, Driver: broken})
    failed = {one.name for one in findings if one.text.startswith(BROKEN)}
    assert failed == {one.name for one in CHECKS if one.part is Driver}


def test_what_hangs_is_given_up(node: Any) -> None:
    """A driver that never answers holds up its own checks, for a bounded time; they say so."""
    ended = threading.Event()

    def hangs(scene: Any) -> object:
        ended.wait(5)
        return Cards(())

    try:
        findings = look(node.scene(), {Cards: hangs}, seconds=0.05)
    finally:
        ended.set()
    said = {one.text for one in findings if one.area == "cards"}
    assert said == {"looking took more than 0.05 s, and was given up"}
    assert {one.level for one in findings if one.area == "cards"} == {Level.UNSEEN}
