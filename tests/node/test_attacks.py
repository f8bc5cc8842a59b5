"""Every kind of lease is attacked from inside, by each path of its node, and holds what it states."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

OTHER_USER = 12345
MIB = 1 << 20
TIERS = ("kernel", "supervised", "hook", "advisory")
# The weakest tier that has to refuse each path.
REFUSED_BY = {
    "kfd by the library": "hook",
    "kfd by an odd request": "hook",
    "gem by the library": "hook",
    "kfd by a system call": "supervised",
    "kfd without the environment": "supervised",
    "gem by a system call": "supervised",
}


def attack(node: Any, lease: dict[str, Any], user: int | None = None) -> dict[str, dict[str, str]]:
    """What became of each path, by device, when the lease's holder went for more than its slice."""
    program = node.client / "attack.py"
    shutil.copy(Path(__file__).with_name("attack.py"), program)
    known = {one["device"]: one for one in node.http("GET", "/v1/devices").body["devices"]}
    words = []
    for held in lease["slices"]:
        device = known[held["device"]]
        # A dump may lack the number; then its node has no KFD to ask either.
        minor = device["render_node"].removeprefix("renderD")
        words.append(f"{device['gpu_id'] or 0}:{minor}:{held['vram_bytes'] + 64 * MIB}")
    interpreter = node.interpreter(user)
    done = node.gpulease("exec", str(lease["id"]), "--", interpreter, str(program), *words, user=user)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def weaker_than_stated(lease: dict[str, Any], outcomes: dict[str, dict[str, str]]) -> list[str]:
    """The paths that got VRAM although the lease's guarantee says that they do not."""
    stated = TIERS.index(lease["guarantee"]["memory"])
    return [
        f"{device} {path}: {outcome}"
        for device, paths in outcomes.items()
        for path, outcome in paths.items()
        if stated <= TIERS.index(REFUSED_BY[path])
        and outcome != "refused"
        and not outcome.startswith("no way in")
    ]


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
    outcomes = attack(node, lease, user)
    assert outcomes
    assert weaker_than_stated(lease, outcomes) == []


@pytest.mark.parametrize("tier", TIERS)
def test_an_outcome_weaker_than_stated_is_seen(tier: str) -> None:
    """The comparison fails a tier for exactly the paths that it has to refuse."""
    lease = {"guarantee": {"memory": tier}}
    taken = {"gpu": dict.fromkeys(REFUSED_BY, "taken")}
    refused = {"gpu": dict.fromkeys(REFUSED_BY, "refused")}
    seen = {"kernel": 6, "supervised": 6, "hook": 3, "advisory": 0}
    assert len(weaker_than_stated(lease, taken)) == seen[tier]
    assert weaker_than_stated(lease, refused) == []
