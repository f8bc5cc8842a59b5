"""A card's reset, from the driver's own announcement to a lease that is proved clean."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeagent.config import Release
from nodeagent.domain.lease import Lease, LeaseState
from tests.rig.wired import GIB, Wired, open_again, path_of

pytestmark = pytest.mark.rig

HALF = 120 * GIB  # two of these are on two cards


@pytest.fixture
def agent(rig, tmp_path: Path) -> Iterator[Wired]:
    """An agent that closes nothing, and tells lost leases by a signal of their own."""
    made = Wired(tmp_path, enabled=False, release=Release(grace_seconds=60, on_lost="SIGUSR1"))
    yield made
    made.stop()
    open_again(tmp_path)


def held(rig, agent: Wired) -> tuple[Lease, Any, Any]:
    """A lease of more than half a card, its GPU, and a process of it that has memory there."""
    lease = agent.grant(HALF)
    ((region, _),) = agent.regions(lease).items()
    gpu = next(gpu for gpu in rig.gpus if gpu.region == region)
    holder = rig.holder(gpu, path_of(lease))
    assert holder.do("alloc 1G") == "ok"
    return lease, gpu, holder


def state(agent: Wired, lease: Lease) -> LeaseState:
    found = agent.built.ledger.lease(lease.id)
    assert found is not None
    return found.state


def test_a_reset_loses_the_leases_of_its_card_alone(rig, agent: Wired, eventually) -> None:
    """Its process gets the signal, its slice is free once its memory is back; a neighbour keeps all."""
    lease, gpu, holder = held(rig, agent)
    neighbour, other, beside = held(rig, agent)
    assert other != gpu
    rig.fault(wedge=f"{gpu.pci} {holder.pid} train.py")
    assert holder.child.wait() == -signal.SIGUSR1
    eventually(lambda: state(agent, lease) is LeaseState.RELEASED)
    ended = agent.built.ledger.lease(lease.id)
    assert ended and ended.reason == f"device {gpu.pci}/0 was reset after train.py ({holder.pid})"
    (told,) = agent.events("device_reset")
    assert (told.device, told.data["leases"]) == (f"{gpu.pci}/0", [lease.id])
    assert state(agent, neighbour) is LeaseState.ACTIVE
    assert rig.held(beside.pid, other) == GIB
    assert beside.do("alloc 1G") == "ok"
    again = agent.grant(HALF)
    assert list(agent.regions(again)) == [gpu.region]
