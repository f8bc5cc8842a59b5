"""The hook's files of a live lease, on a node with the real agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.adapters.hook_files import LIBRARY

from .conftest import ServedNode

pytestmark = pytest.mark.root
ANN = 64_321


@pytest.fixture
def usage(node: ServedNode) -> Path:
    """The usage file of Ann's lease."""
    if not LIBRARY.is_file():
        pytest.skip(f"{LIBRARY} was not built")
    node.start()
    lease = node.grant(ANN, "--cu", "8", "--vram", "1G")
    assert lease["guarantee"]["memory"] == "hook"
    (found,) = Path(f"/proc/{node.init.pid}/root/run/nodeagent/hook/usage").glob(f"*/*-{lease['id']}")
    return found


def lease_of(usage: Path) -> int:
    return int(usage.name.rpartition("-")[2])


def test_the_watch_puts_back_what_a_holder_spoils(node: ServedNode, usage: Path) -> None:
    """A usage file that its holder cuts has its size again after a look, and the lease's events say so."""
    size = usage.stat().st_size
    node.cut(ANN, usage)
    node.until(lambda: usage.stat().st_size == size)
    (told,) = node.until(lambda: node.events("effect_restored"))
    assert (told["lease"], told["data"]) == (lease_of(usage), {"effect": "hook"})


def test_what_its_programs_tell_is_shown_with_a_lease(node: ServedNode, usage: Path) -> None:
    """Nothing yet: the count is there, for its holder and for root."""
    lease = node.http("GET", f"/v1/leases/{lease_of(usage)}")
    assert ([one["told_bytes"] for one in lease["slices"]], lease["denied"]) == ([0], 0)
