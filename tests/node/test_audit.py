"""`nodeagent audit` on this very node, whichever it is."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from nodeagent.domain.audit import ELSEWHERE, WAYS


def audit(node: Any, *options: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "nodeagent.cli.main", "audit", "--socket", str(node.socket), *options]
    return subprocess.run(words, text=True, capture_output=True, check=False)


@pytest.mark.root
@pytest.mark.unattacked("it is the audit's, which attacks it")
def test_a_lease_is_audited(node: Any) -> None:
    """Every way is told of, none breaks what the lease states, and the lease is gone afterwards."""
    done = audit(node, "--json")
    assert done.returncode in (0, 1), done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert (told["left"], told["uid"]) == (None, 65534)
    found = {one["way"]: one for one in told["outcomes"]}
    assert set(found) == {way.name for way in WAYS} | set(ELSEWHERE)
    assert not [one for one in found.values() if one["text"] == "nothing came of it"]
    assert {one["level"] for one in found.values()} <= {"HELD", "OPEN", "UNTRIED", "ELSEWHERE"}
    assert found["moving to another cgroup"]["level"] == "HELD"
    if (node.attacks.dev / "kfd").exists() and told["guarantee"]["memory"] in (
        "hook",
        "supervised",
        "kernel",
    ):
        assert found["KFD, more than the slice"]["level"] == "HELD"
    assert node.live() == []


@pytest.mark.root
def test_a_lease_that_is_not_to_be_had(node: Any) -> None:
    """Where no lease is granted nothing was tried, and the reason is on one line."""
    done = audit(node, "--device", "nope")
    assert done.returncode == 2
    assert done.stderr.startswith("nodeagent: gpulease run:") and done.stderr.count("\n") == 1
    assert "nothing was tried" in done.stderr
