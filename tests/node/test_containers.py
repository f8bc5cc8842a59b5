"""Leases of containers, on any node: what one is told, and what is there only while it lives."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from .conftest import RunningNode

# Nobody enters one but through its engine: tests/docker attacks them from inside.
pytestmark = [pytest.mark.root, pytest.mark.unattacked]
ASKED = {
    "slices": [{"cu_percent": 10, "vram_percent": 10}],
    "anchor": {"kind": "container", "engine": "docker", "libc": "glibc-2.36", "start_seconds": 60},
}


@pytest.fixture
def lease(node: RunningNode) -> Any:
    answer = node.http("POST", "/v1/leases", ASKED)
    assert answer.status == 201, answer.body
    return answer.body


def test_what_is_mounted_is_there_and_roots_alone(node: RunningNode, lease: Any) -> None:
    """Each source exists, in a directory that lets nobody in or as a file that nobody else can write."""
    mounts = lease["container"]["mounts"]
    assert {"/etc/gpulease/lease"} <= {one["target"] for one in mounts}
    for one in mounts:
        source = Path(one["source"])
        assert source.exists(), one
        private = any(not parent.stat().st_mode & 0o077 for parent in source.parents)
        assert private or (one["read_only"] and not source.stat().st_mode & stat.S_IWOTH), one


def test_nothing_that_could_be_mounted_outlives_the_lease(node: RunningNode, lease: Any) -> None:
    """So no engine starts a container of a lease that is over: the sources of its mounts are missing."""
    node.http("DELETE", f"/v1/leases/{lease['id']}?wait=5")
    own = [
        one["source"] for one in lease["container"]["mounts"] if one["target"] != "/usr/lib/gpulease/hook.so"
    ]
    assert own and not [path for path in own if Path(path).exists()]
