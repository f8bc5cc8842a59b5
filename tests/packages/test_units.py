"""The systemd units: systemd reads them, the sandbox holds, and leaves out what the agent has to write."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from nodeagent.config import DEFAULT_CDI, DEFAULT_SOCKET, DEFAULT_SPOOL, DEFAULT_STATE

UNITS = Path(__file__).resolve().parents[2] / "systemd"
AGENT = UNITS / "nodeagent.service"
EXPOSED_AT_MOST = 40  # tenths
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")


def settings(unit: Path) -> dict[str, list[str]]:
    """Of each key all its words, in order."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for key, value in re.findall(r"^(\w+)=(.*)$", unit.read_text(encoding="utf-8"), re.M):
        found[key] += value.split()
    return found


@needs_systemd
def test_systemd_reads_every_unit(tmp_path: Path) -> None:
    """Without a complaint, but that the programs are not installed here."""
    names = [path.name for path in UNITS.glob("*.*") if path.suffix in (".service", ".socket", ".slice")]
    for name in names:  # in a directory of their own: it looks for what a unit names beside it
        shutil.copy(UNITS / name, tmp_path)
    words = ["systemd-analyze", "verify", "--man=no", *(tmp_path / name for name in sorted(names))]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if str(tmp_path) in line or "nodeagent" in line]
    assert [line for line in said if "is not executable: No such file" not in line] == []
    assert len(names) >= 7


@needs_systemd
def test_the_agents_sandbox_holds() -> None:
    """As systemd rates it: what is left open is in the unit's comments."""
    words = ["systemd-analyze", "security", "--offline=yes", "--no-pager", f"--threshold={EXPOSED_AT_MOST}"]
    done = subprocess.run([*words, AGENT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout.splitlines()[-1]


def test_the_agent_may_write_what_is_its_own() -> None:
    """In a file system that is read-only else: state, socket, CDI files and spool where the defaults are."""
    unit = settings(AGENT)
    assert unit["ProtectSystem"] == ["strict"]
    writable = {path.removeprefix("-") for path in unit["ReadWritePaths"]}
    assert {str(DEFAULT_CDI), "/etc/cdi", str(DEFAULT_SPOOL.parent)} <= writable
    assert [f"/var/lib/{name}" for name in unit["StateDirectory"]] == [str(DEFAULT_STATE)]
    assert [f"/run/{name}" for name in unit["RuntimeDirectory"]] == [str(DEFAULT_SOCKET.parent)]


def test_the_agent_may_write_partition_modes_and_no_more_of_sys() -> None:
    """A card's file is below /sys/devices, wherever a link in /sys/bus leads to it from."""
    unit = settings(AGENT)
    assert unit["ProtectKernelTunables"] == ["yes"]  # /sys is read-only
    assert [path for path in unit["ReadWritePaths"] if "/sys" in path] == ["-/sys/devices"]
    cards = list(Path("/sys/bus/pci/devices").glob("*"))
    assert all(card.resolve().is_relative_to("/sys/devices") for card in cards)


def test_what_is_optional_keeps_no_agent_from_starting() -> None:
    """A path that is not there on every node is marked so."""
    assert all(path.startswith("-") for path in settings(AGENT)["ReadWritePaths"])


def test_every_exception_of_the_sandbox_is_explained() -> None:
    """Each capability that the agent keeps has a line that says what for."""
    text = AGENT.read_text(encoding="utf-8")
    comments = "\n".join(re.findall(r"^# (.*)$", text, re.M))
    kept = settings(AGENT)["CapabilityBoundingSet"]
    assert kept and [name for name in kept if name not in comments] == []
