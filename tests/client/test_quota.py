"""`gpulease quota`: what the agent says of the caller's quotas."""

from __future__ import annotations

import json
from typing import Any


def test_quota_shows_what_counts_and_what_may(agent: Any, gpulease: Any) -> None:
    """A line for each resource that a quota bounds, sizes as people read them; without any it says so."""
    bounds = [
        {"resource": "vram_bytes", "used": 4 << 30, "most": 48 << 30},
        {"resource": "leases", "used": 1, "most": 4},
    ]
    answer = {"quotas": [{"name": "each user", "bounds": bounds}]}
    classes = {"classes": [{"name": "big"}, {"name": "small", "default": True}, {"other": 1}]}
    agent.canned = [(200, answer, {}), (200, classes, {})]
    _, *rows, last = gpulease("quota").stdout.splitlines()
    assert last == "classes that you may name (--class): small, big"
    assert [" ".join(row.split()) for row in rows] == [
        "each user VRAM 4 GiB 48 GiB",
        "each user leases 1 4",
    ]
    agent.canned = [(200, answer, {}), (200, classes, {}), (200, {}, {}), (200, {}, {})]
    assert json.loads(gpulease("quota", "--json").stdout) == {**answer, "classes": ["small", "big"]}
    assert gpulease("quota").stdout == "no quota holds for you\n"


def test_a_class_is_named(agent: Any, gpulease: Any) -> None:
    """--class goes to the agent as it is, and an empty name nowhere."""
    assert gpulease("grant", "--class", "big", "--request-id", "x").returncode == 0
    assert agent.called("POST", "/v1/leases$")[0]["class_name"] == "big"
    assert "whole device" not in gpulease("grant", "--class", "big").stderr
    assert gpulease("grant", "--class", "").returncode == 2
