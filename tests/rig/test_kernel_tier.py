"""The kernel tier on a real dmem controller, with systemd around it."""

from __future__ import annotations

import pytest

from tests.rig.wired import CGROUPS, GIB, Wired, command, limit, path_of

pytestmark = pytest.mark.rig


def gpu_of(rig, region: str):
    return next(gpu for gpu in rig.gpus if gpu.region == region)


def test_two_leases_on_several_gpus_hold_against_each_other(rig, wired: Wired, eventually) -> None:
    """Limits are there before anyone enters; what is over is refused, below it and nested; others go on."""
    first, second = wired.grant(2 * GIB, 2 * GIB), wired.grant(GIB)
    assert first.guarantee.memory == second.guarantee.memory == "kernel"
    regions = wired.regions(first)
    assert len(regions) == 2
    assert all(limit(path_of(first), region) == str(size) for region, size in regions.items())
    (shared,) = wired.regions(second)
    neighbour = rig.holder(gpu_of(rig, shared), path_of(second))
    assert neighbour.do(f"alloc {GIB // 2}") == "ok"
    for region, size in regions.items():
        inner = path_of(first) / f"nested-{region.split('/')[1]}"
        inner.mkdir()
        holder = rig.holder(gpu_of(rig, region), inner)
        assert holder.do(f"alloc {size}") == "ok"
        assert holder.do("alloc 4096") == "ENOMEM"
    assert neighbour.do(f"alloc {GIB // 2}") == "ok"
    assert neighbour.do("alloc 4096") == "ENOMEM"
    ref = wired.built.ledger.lease(first.id)
    assert ref is not None
    wired.release(first)
    assert not path_of(first).exists()


def test_limits_survive_what_systemd_does(rig, wired: Wired, eventually) -> None:
    """The lease is a slice that PID 1 knows, and nothing that systemd does around it takes a limit."""
    lease = wired.grant(GIB)
    ((region, size),) = wired.regions(lease).items()
    slice_ = path_of(lease).name
    assert command("systemctl", "is-active", slice_) == "active"
    for words in (
        ("systemctl", "daemon-reload"),
        ("systemctl", "daemon-reexec"),
        ("systemctl", "set-property", "--runtime", slice_, "MemoryMax=1G", "CPUQuota=150%"),
        ("systemctl", "set-property", "--runtime", path_of(lease).parent.name, "TasksMax=500"),
        ("systemd-run", "-q", f"--slice={slice_}", "--unit=rig-inside", "sleep", "1000"),
        ("systemctl", "stop", "rig-inside"),
        ("systemd-run", "-q", "--wait", "--unit=rig-beside", "true"),
    ):
        command(*words)
        assert limit(path_of(lease), region) == str(size), words
    assert lease.id not in {event.lease for event in wired.events("limit_restored")}
    wired.release(lease)
    assert command("systemctl", "is-active", slice_) == "inactive"


def test_a_limit_that_was_taken_comes_back(rig, wired: Wired, eventually) -> None:
    """Raised or removed with the controller, it is written again at the next look, and told."""
    lease = wired.grant(GIB)
    ((region, size),) = wired.regions(lease).items()
    (path_of(lease) / "dmem.max").write_text(f"{region} max\n")
    eventually(lambda: limit(path_of(lease), region) == str(size))
    (path_of(lease).parent / "cgroup.subtree_control").write_text("-dmem")
    eventually(lambda: (path_of(lease) / "dmem.max").exists() and limit(path_of(lease), region) == str(size))
    assert lease.id in {event.lease for event in wired.events("limit_restored")}


def test_a_limit_comes_back_under_what_is_used_meanwhile(rig, wired: Wired, eventually) -> None:
    """From 7.3 on at once; before, once the usage allows it, which keeps no other lease waiting."""
    lease, other = wired.grant(GIB), wired.grant(GIB)
    ((region, size),) = wired.regions(lease).items()
    holder = rig.holder(gpu_of(rig, region), path_of(lease))
    taken = False
    while not taken:  # the agent may be quicker
        (path_of(lease) / "dmem.max").write_text(f"{region} max\n")
        taken = holder.do(f"alloc {2 * size}") == "ok"
    ((beside, least),) = wired.regions(other).items()
    (path_of(other) / "dmem.max").write_text(f"{beside} max\n")
    eventually(lambda: limit(path_of(other), beside) == str(least))
    if rig.kernel < (7, 3):
        assert limit(path_of(lease), region) == "max"
        assert holder.do("free all") == "ok"
    eventually(lambda: limit(path_of(lease), region) == str(size))
    assert holder.do(f"alloc {2 * size}") == "ENOMEM"


def test_limits_come_back_with_the_driver(rig, wired: Wired, eventually) -> None:
    """Reloading the driver leaves every cgroup unlimited: leases and all else are held again."""
    lease = wired.grant(GIB)
    ((region, size),) = wired.regions(lease).items()
    command("modprobe", "-r", "fakegpu")
    assert (path_of(lease) / "dmem.max").read_text() == ""
    command("modprobe", "fakegpu")
    eventually(lambda: limit(path_of(lease), region) == str(size))
    eventually(lambda: limit(CGROUPS / "user.slice", region) == "0")
    holder = rig.holder(gpu_of(rig, region), path_of(lease))
    assert (holder.do(f"alloc {size}"), holder.do("alloc 4096")) == ("ok", "ENOMEM")
