"""Every kind of lease is attacked from inside, by each path of its node, and holds what it states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .attacks import REFUSED_BY, TIERS, weaker_than_stated

OTHER_USER = 12345
FAKEGPU = Path("/sys/module/fakegpu")  # the rig


@pytest.mark.parametrize("user", [None, OTHER_USER], ids=["root", "user"])
@pytest.mark.parametrize(
    "options",
    [
        ("--cu", "25%", "--vram", "1G"),
        ("--cu", "shared", "--vram", "1G"),
        ("--gpus", "2", "--cu", "25%", "--vram", "2G"),
        ("--cu", "100%", "--vram", "1G"),
    ],
    ids=["part", "shared", "two devices", "all CUs"],
)
@pytest.mark.root
def test_a_lease_holds_what_it_states(node: Any, options: tuple[str, ...], user: int | None) -> None:
    """No path that the stated guarantee closes gives a byte over the slice."""
    done = node.gpulease("grant", *options, "--ttl", "60s", "--json", user=user)
    if done.returncode == 3 and "--gpus" in options:
        pytest.skip("this node has one device")
    assert done.returncode == 0, done.stderr
    lease = json.loads(done.stdout)
    outcomes = node.attacks.outcomes(lease["id"])
    assert outcomes
    assert set(outcomes) == {held["device"] for held in lease["slices"]}
    assert weaker_than_stated(lease["guarantee"]["memory"], outcomes) == []
    if FAKEGPU.exists():
        assert lease["guarantee"]["memory"] == "kernel"
        assert {found["the rig's driver"] for found in outcomes.values()} == {"refused"}
    elif user is None and (node.attacks.dev / "kfd").exists():
        met = {found["kfd by the library"] for found in outcomes.values()}
        assert met <= {"refused", "taken"}, "there is a KFD, and it was not attacked"


@pytest.mark.parametrize("tier", TIERS)
def test_an_outcome_weaker_than_stated_is_seen(tier: str) -> None:
    """The comparison fails a tier for exactly the paths that it has to refuse."""
    taken = {"gpu": dict.fromkeys(REFUSED_BY, "taken")}
    refused = {"gpu": dict.fromkeys(REFUSED_BY, "refused")}
    seen = {"kernel": 9, "supervised": 7, "hook": 4, "advisory": 0}
    assert len(weaker_than_stated(tier, taken)) == seen[tier]
    assert weaker_than_stated(tier, refused) == []
