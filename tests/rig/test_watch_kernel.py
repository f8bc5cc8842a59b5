"""The watch and the release, by what a real controller has charged and not by what processes show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeagent.config import Release, Watch
from nodeagent.domain.lease import LeaseState, SliceState
from tests.rig.wired import CGROUPS, GIB, Wired, open_again, path_of

pytestmark = pytest.mark.rig


@pytest.fixture
def wire(rig, tmp_path: Path) -> Iterator[Callable[..., Wired]]:
    """Starts an agent that looks often and closes nothing, so that its limits can be taken away."""
    made: list[Wired] = []

    def start(*, on_overuse: str = "report") -> Wired:
        watch = Watch(seconds=0.5, on_overuse=on_overuse)
        release = Release(timeout_seconds=1, retry_seconds=1)
        made.append(Wired(tmp_path, enabled=False, watch=watch, release=release))
        return made[0]

    yield start
    rig.fault(free_delay_ms=0, hang="never")
    for one in made:
        one.stop()
    open_again(tmp_path)


def holding(rig, agent: Wired, size: int) -> tuple[Any, Any]:
    """A lease of 1 GiB whose process holds *size*, for root raised its limit."""
    lease = agent.grant(GIB)
    ((region, _),) = agent.regions(lease).items()
    if size > GIB:
        (path_of(lease) / "dmem.max").write_text(f"{region} max")
    gpu = next(gpu for gpu in rig.gpus if gpu.region == region)
    holder = rig.holder(gpu, path_of(lease))
    assert holder.do(f"alloc {size}") == "ok"
    return lease, holder


@pytest.mark.way_out(
    "using more than the lease with no process left to show it", tier="watch", outcome="told, by dmem.current"
)
def test_overuse_that_only_the_cgroup_shows_is_told(rig, wire, eventually) -> None:
    """VRAM that outlives its process has no entry of KFD's; the lease's usage is over all the same."""
    agent = wire()
    rig.fault(free_delay_ms=-1)
    lease, holder = holding(rig, agent, 2 * GIB)
    holder.end()
    told = agent.events("overuse")
    eventually(lambda: agent.events("overuse")[len(told) :])
    ((region, size),) = agent.regions(lease).items()
    shown = agent.events("overuse")[-1]
    assert shown.lease == lease.id
    assert shown.data["regions"] == {region: {"used_bytes": 2 * GIB, "granted_bytes": size}}
    assert rig.held(holder.pid, next(gpu for gpu in rig.gpus if gpu.region == region)) is None


def test_a_lease_within_its_limit_is_not_told_of(rig, wire, eventually) -> None:
    """What is charged to the brim is no over-use, and a foreign user beside it is not the lease's."""
    agent = wire()
    lease, _ = holding(rig, agent, GIB)
    ((region, _),) = agent.regions(lease).items()
    gpu = next(gpu for gpu in rig.gpus if gpu.region == region)
    stranger = rig.holder(gpu, CGROUPS / "user.slice/rig-callers", user="bob")
    assert stranger.do("alloc 3G") == "ok"
    eventually(lambda: agent.events("foreign_user"))
    (told,) = agent.events("foreign_user")
    assert told.data["vram_bytes"] == 3 * GIB
    assert told.data["pids"] == [stranger.pid]
    assert agent.events("overuse") == []


def test_foreign_vram_is_not_granted(rig, wire, eventually) -> None:
    """What a process outside leases holds is missing from what is left, and comes back with its end."""
    agent = wire()
    device = agent.built.agent.inventory().devices[0]
    gpu = next(gpu for gpu in rig.gpus if gpu.pci == device.pci)
    before = agent.built.agent.free(device.key).vram_bytes
    stranger = rig.holder(gpu, CGROUPS / "user.slice/rig-callers", user="bob")
    assert stranger.do("alloc 5G") == "ok"
    eventually(lambda: agent.built.agent.free(device.key).vram_bytes <= before - 5 * GIB)
    stranger.end()
    eventually(lambda: agent.built.agent.free(device.key).vram_bytes == before)


def test_a_site_ends_a_lease_that_its_cgroup_shows_over(rig, wire, eventually) -> None:
    """With on_overuse = kill the lease ends, its process with it, and nothing stays charged."""
    agent = wire(on_overuse="kill")
    lease, holder = holding(rig, agent, 2 * GIB)
    eventually(lambda: agent.built.ledger.lease(lease.id).state is LeaseState.RELEASED)
    assert holder.child.wait() != 0
    assert agent.events("overuse_ended")
    assert not path_of(lease).exists()


@pytest.mark.parametrize("fault", ["late", "never", "stuck"])
def test_a_slice_is_free_only_when_its_vram_is(rig, wire, eventually, fault: str) -> None:
    """Charged after its process, or held by one that cannot end: quarantined until the usage is 0."""
    agent = wire()
    lease, _ = holding(rig, agent, GIB)
    rig.fault(free_delay_ms={"late": 500, "never": -1, "stuck": 0}[fault])
    if fault == "stuck":
        rig.fault(hang="close")
    agent.release(lease)
    if fault != "late":
        eventually(lambda: agent.built.ledger.lease(lease.id).state is LeaseState.FAILED)
        slices = agent.built.ledger.lease(lease.id).slices
        assert [one.state for one in slices] == [SliceState.QUARANTINED]
        rig.fault(free_delay_ms=0, hang="never")
    eventually(lambda: not any(held.lease == lease.id for held in agent.built.agent.held()))
    ((region, _),) = agent.regions(lease).items()
    assert f"{region} 0" in (CGROUPS / "dmem.current").read_text().splitlines()
