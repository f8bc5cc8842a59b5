"""What the agent's start and its end mean for the kernel tier, on a real dmem controller."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.wired import CGROUPS, GIB, PROBE, Wired, closed, limit, open_again, path_of

pytestmark = pytest.mark.rig


@pytest.mark.way_out("the agent is stopped or killed", tier="kernel", outcome="limits and closure stay")
def test_nothing_is_charged_once_everything_was_killed(rig, tmp_path: Path, eventually) -> None:
    """The agent's end takes no limit; a kill of the lease's processes gives every byte back."""
    made = Wired(tmp_path)
    closed(made)
    lease = made.grant(GIB)
    ((region, size),) = made.regions(lease).items()
    gpu = next(gpu for gpu in rig.gpus if gpu.region == region)
    holders = [rig.holder(gpu, path_of(lease)) for _ in range(2)]
    assert [holder.do(f"alloc {size // 2}") for holder in holders] == ["ok", "ok"]
    made.stop()
    try:
        assert limit(path_of(lease), region) == str(size)
        assert limit(CGROUPS / "user.slice", region) == limit(CGROUPS / "system.slice", region) == "0"
        for holder in holders:
            holder.end()
        current = path_of(lease) / "dmem.current"
        eventually(lambda: f"{region} 0" in current.read_text().splitlines())
    finally:
        open_again(tmp_path)
    assert limit(CGROUPS / "user.slice", region) == "max"


@pytest.mark.parametrize(
    ("probe", "why"),
    [
        ("#!/bin/sh\necho held\nread -r _\n", "has the files and not the effect"),
        ("#!/bin/sh\necho no such device\nexit 1\n", "no allocation could be tried: no such device"),
        (PROBE.replace('"$3"', "20000000"), "were allocated under a limit of"),
    ],
    ids=["no charge", "no device", "no refusal"],
)
def test_a_kernel_that_only_has_the_files_has_no_tier(rig, tmp_path: Path, probe: str, why: str) -> None:
    """What is not charged, cannot be tried, or goes over its limit is not offered as held."""
    made = Wired(tmp_path, probe=probe)
    try:
        tier = made.tier()
        assert why in tier.why
        assert not tier.present
        assert made.grant(GIB).guarantee.memory == "advisory"
        outside = (CGROUPS / "user.slice/dmem.max").read_text().splitlines()
        assert all(line.endswith(" max") for line in outside)
    finally:
        for lease in made.built.ledger.live():
            made.release(lease)
        made.stop()


@pytest.fixture
def job(rig) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a service's cgroup: a lease for it nests there."""
    cgroup = CGROUPS / "system.slice/rig-job.service"
    cgroup.mkdir()
    process = subprocess.Popen(["sleep", "infinity"])
    (cgroup / "cgroup.procs").write_text(str(process.pid))
    yield process
    process.kill()
    process.wait()
    cgroup.rmdir()


@pytest.mark.way_out(
    "a service that is started beside a nested lease, before the next look",
    tier="kernel",
    outcome="gets no more than what the leases there hold, together with them",
)
def test_what_appears_beside_a_nested_lease_is_bounded(rig, job, tmp_path: Path) -> None:
    """With nobody to look any more, a new child of the slice shares what the lease in it holds."""
    made = Wired(tmp_path)
    closed(made)
    lease = made.grant(GIB, pid=job.pid)
    ((region, size),) = made.regions(lease).items()
    gpu = next(gpu for gpu in rig.gpus if gpu.region == region)
    made.stop()
    fresh = CGROUPS / "system.slice/rig-fresh.service"
    try:
        fresh.mkdir()
        beside = rig.holder(gpu, fresh)
        assert beside.do(f"alloc {size}") == "ok"
        assert beside.do("alloc 4096") == "ENOMEM"
        beside.end()
        fresh.rmdir()
    finally:
        open_again(tmp_path)
