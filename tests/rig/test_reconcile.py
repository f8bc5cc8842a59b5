"""Leftovers of leases that a real systemd keeps as slice units, as the agent's start finds them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent import wiring
from tests.rig.wired import CGROUPS, Wired, command

pytestmark = pytest.mark.rig
STRAY = 999


@pytest.fixture
def unit(rig, tmp_path: Path) -> Iterator[str]:
    """The running slice unit of a lease that no ledger of *tmp_path*'s agent ever had."""
    (tmp_path / "state").mkdir(mode=0o700)
    name = f"{wiring.stem(tmp_path / 'state')}-{STRAY}.slice"
    command("systemctl", "start", name)
    yield name
    command("systemctl", "stop", name)


def _reconciled(made: Wired) -> set[str]:
    return {event.data["action"] for event in made.events("reconciled") if event.lease == STRAY}


def test_an_empty_unit_of_no_lease_is_stopped(unit: str, tmp_path: Path) -> None:
    """PID 1 forgets the slice with its cgroup, else it would make it anew, without a limit."""
    made = Wired(tmp_path, enabled=False)
    try:
        assert command("systemctl", "is-active", unit) == "inactive"
        assert "stop_unit" in _reconciled(made)
        assert made.built.agent.unready() is None
    finally:
        made.stop()


def test_a_unit_in_which_somebody_runs_is_left_alone(unit: str, tmp_path: Path, eventually) -> None:
    """Nobody is ended for a name: grants stop, with the path, until it is empty; then its unit goes."""
    command("systemd-run", "--quiet", "--unit=rig-stray", f"--slice={unit}", "sleep", "infinity")
    made = Wired(tmp_path, enabled=False)
    try:
        assert command("systemctl", "is-active", "rig-stray") == "active"
        assert f"{STRAY}.slice" in str(made.built.agent.unready())
        command("systemctl", "stop", "rig-stray")
        eventually(lambda: made.built.agent.unready() is None)  # its own look may be under way
        made.stop()
        made = Wired(tmp_path, enabled=False)  # units are looked at once a minute, and at a start
        assert command("systemctl", "is-active", unit) == "inactive"
        assert not (CGROUPS / unit.rpartition("-")[0] / unit).exists()
    finally:
        command("systemctl", "stop", "rig-stray")
        made.stop()
