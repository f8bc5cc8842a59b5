"""Who was seen in a lease: bounded, forgotten with it, and the innermost lease's own."""

from __future__ import annotations

import pytest
from ipc_house import CGROUP, UID, IpcHouse
from service_builders import user

from nodeagent.service import census as census_module

pytestmark = [pytest.mark.root, pytest.mark.cgroup2]


def test_the_census_is_bounded(ipc: IpcHouse, makers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a lease that starts processes without end, those that ended first are forgotten."""
    monkeypatch.setattr(census_module, "MOST_LIVES", 2)
    lease = ipc.take()
    pids = []
    for _ in range(4):
        maker = makers(UID, lease=(ipc, lease))
        pids.append(maker.process.pid)
        maker.end()
        ipc.census.look()
    assert [life.pid for life in ipc.census.lives(lease.id)] == pids[-2:]


def test_a_lease_that_ended_is_forgotten(ipc: IpcHouse, makers) -> None:
    """Its processes are of no use any more."""
    lease = ipc.take()
    makers(UID, lease=(ipc, lease))
    assert ipc.census.lives(lease.id)
    ipc.release(lease)
    ipc.census.look()
    assert ipc.census.lives(lease.id) == ()


def test_a_process_that_ended_has_an_end(ipc: IpcHouse, makers) -> None:
    """From the look that misses it on, its pid may be another's."""
    lease = ipc.take()
    maker = makers(UID, lease=(ipc, lease))
    (alive,) = ipc.census.lives(lease.id)
    maker.end()
    ipc.census.look()
    (ended,) = ipc.census.lives(lease.id)
    assert (alive.ended, ended.began) == (None, pytest.approx(alive.began))
    assert ended.ended is not None and ended.ended >= ended.began


def test_who_is_in_a_nested_lease_is_not_the_outer_ones(ipc: IpcHouse, makers) -> None:
    """Leases nest; the innermost has the process."""
    outer = ipc.take()
    caller = makers(UID, lease=(ipc, outer)).process.pid
    inner = ipc.grant(user(UID, caller), cus=8, anchor=CGROUP)
    assert inner.cgroup.startswith(f"{outer.cgroup}/")
    pid = makers(UID, lease=(ipc, inner)).process.pid
    assert pid not in [life.pid for life in ipc.census.lives(outer.id)]
    assert pid in [life.pid for life in ipc.census.lives(inner.id)]
