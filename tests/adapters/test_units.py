"""The units that systemd runs: how far the agent's is closed, and that each exception is explained in it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

UNITS = Path(__file__).parents[2] / "systemd"
MOST_EXPOSED = 4.0
# Not exceptions of ours: what is asked of every service that talks to anybody at all.
LISTS = {"CapabilityBoundingSet", "RestrictAddressFamilies", "SystemCallFilter"}
COMMON = {"RestrictAddressFamilies=~AF_UNIX", "PrivateMounts=", "SupplementaryGroups=", "RemoveIPC="}


def analysed(unit: str) -> list[dict[str, Any]]:
    """The rows of `systemd-analyze security`."""
    words = ["systemd-analyze", "security", "--offline=yes", "--json=short", str(UNITS / unit)]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    if not ran.stdout.startswith("["):
        pytest.skip(f"systemd-analyze does not judge files here: {ran.stderr.strip()[:100]}")
    rows: list[dict[str, Any]] = json.loads(ran.stdout)
    return rows


@pytest.fixture(autouse=True)
def _analyser() -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")


def test_the_agents_exposure_is_low() -> None:
    """At most 4.0 of 10, by systemd's own count."""
    words = ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(UNITS / "nodeagent.service")]
    told = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    found = re.search(r"exposure level for nodeagent.service: ([0-9.]+)", told)
    if found is None:
        pytest.skip("this systemd-analyze does not judge files")
    assert float(found[1]) <= MOST_EXPOSED


def test_each_exception_is_explained() -> None:
    """Whatever the sandbox leaves open is named in a comment of the unit, with what it is for."""
    comments = "".join(line for line in (UNITS / "nodeagent.service").open() if line.startswith("#"))
    for row in analysed("nodeagent.service"):
        if row["set"] is False and row["name"] not in COMMON:
            words = [word for word in re.findall(r"@?\w{4,}", row["name"]) if word not in LISTS]
            assert any(word in comments for word in words), row["name"]


def test_systemd_understands_each_unit(tmp_path: Path) -> None:
    """No key is misspelt: an unknown one is ignored, and with it what it was to hold."""
    for path in UNITS.glob("*.s*[et]"):
        (tmp_path / path.name).write_text(re.sub(r"/opt/nodeagent/bin/\S+", "/bin/true", path.read_text()))
    ran = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(path.name for path in tmp_path.iterdir())],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"SYSTEMD_UNIT_PATH": f"{tmp_path}:", "PATH": "/usr/bin:/bin"},
    )
    assert not [line for line in ran.stderr.splitlines() if str(tmp_path) in line], ran.stderr
