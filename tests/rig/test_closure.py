"""Ways out of a lease, on a real dmem controller and systemd: outside, nothing is to be had."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.rig.ways import USER, Ways, as_user, bus, user_cgroup, within
from tests.rig.wired import CGROUPS, GIB, Wired, command, limit, path_of

pytestmark = pytest.mark.rig


@pytest.mark.way_out(
    "AttachProcessesToUnit of PID 1",
    tier="kernel",
    outcome="moved, and refused there",
)
def test_who_has_pid_1_move_it_out_gets_nothing(rig, wired: Wired, tmp_path: Path, eventually) -> None:
    """systemd moves a user's process from the lease into the user's own unit, where all is closed."""
    command("loginctl", "enable-linger", USER)
    eventually(bus().exists)
    unit = user_cgroup()
    command(*as_user("mkdir", "-p", str(unit / "rig")))
    lease = wired.grant(GIB)
    attempts = Ways(tmp_path, rig.gpus[0].node, eventually)
    words = within(path_of(lease), *as_user("sh", "-c", f"read _ && {attempts.script('moved')}"))
    mine = subprocess.Popen(words, stdin=subprocess.PIPE, text=True)
    eventually(lambda: path_of(lease).name in cgroup_of(mine.pid))
    told = command(
        *as_user("busctl", "call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1"),
        *("org.freedesktop.systemd1.Manager", "AttachProcessesToUnit", "ssau"),
        *(unit.name, "/rig", "1", str(mine.pid)),
    )
    assert unit.name in cgroup_of(mine.pid), told
    mine.communicate("go\n")
    said = attempts.said("moved")
    assert not said.got
    assert said.cgroup.endswith("/rig")


@pytest.mark.way_out(
    "moving to another cgroup",
    tier="kernel",
    outcome="refused there; what it had stays charged to its lease",
)
def test_who_moves_out_gets_no_more(rig, wired: Wired, eventually) -> None:
    """What a process had stays charged to its lease; outside it gets nothing."""
    lease = wired.grant(GIB)
    ((region, size),) = wired.regions(lease).items()
    gpu = next(gpu for gpu in rig.gpus if gpu.region == region)
    mover = rig.holder(gpu, path_of(lease))
    assert mover.do("alloc 64M") == "ok"
    outside = CGROUPS / "user.slice/rig-outside"
    outside.mkdir()
    (outside / "cgroup.procs").write_text(str(mover.pid))
    assert mover.do("alloc 4096") == "ENOMEM"
    (path_of(lease) / "cgroup.procs").write_text(str(mover.pid))
    assert mover.do(f"alloc {size - (64 << 20)}") == "ok"
    assert mover.do("alloc 4096") == "ENOMEM"
    outside.rmdir()


@pytest.mark.way_out(
    "ROCR_VISIBLE_DEVICES undone, to use a GPU that is not leased", tier="kernel", outcome="no memory there"
)
def test_who_has_a_lease_gets_nothing_of_other_gpus(rig, wired: Wired) -> None:
    """Not from the lease's cgroup either, which has limits of its own GPUs only; a neighbour goes on."""
    lease, neighbour = wired.grant(GIB), wired.grant(GIB, GIB)
    own = set(wired.regions(lease))
    for gpu in rig.gpus:
        holder = rig.holder(gpu, path_of(lease))
        assert holder.do("alloc 4096") == ("ok" if gpu.region in own else "ENOMEM")
    for gpu in rig.gpus:
        if gpu.region in wired.regions(neighbour):
            assert rig.holder(gpu, path_of(neighbour)).do("alloc 64M") == "ok"


@pytest.mark.way_out(
    "root raises a limit outside, or a new top-level cgroup appears",
    tier="kernel",
    outcome="closed again at the next look, and told; until then it can allocate",
)
def test_what_is_opened_or_new_is_closed_again(wired: Wired, rig, eventually) -> None:
    """At the next look, and told."""
    region = rig.gpus[0].region
    (CGROUPS / "user.slice/dmem.max").write_text(f"{region} max\n")
    eventually(lambda: limit(CGROUPS / "user.slice", region) == "0")
    eventually(lambda: wired.events("closure_restored"))
    fresh = CGROUPS / "rig-new.slice"
    fresh.mkdir()
    try:
        eventually(lambda: limit(fresh, region) == "0")
    finally:
        fresh.rmdir()


def cgroup_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text()


def test_a_service_beside_its_lease_shares_what_it_holds(wired: Wired, rig, eventually) -> None:
    """The service is held at its lease's bytes and its siblings at nothing; after the release all are."""
    command("systemd-run", "-q", "--unit=rig-job", "sleep", "1000")
    job = CGROUPS / "system.slice/rig-job.service"
    pid = int((job / "cgroup.procs").read_text().split()[0])
    lease = wired.grant(GIB, pid=pid)
    ((region, size),) = wired.regions(lease).items()
    assert lease.guarantee.memory == "kernel"
    assert limit(job, region) == str(size)
    assert limit(CGROUPS / "system.slice", region) == str(size)
    assert limit(CGROUPS / "system.slice/dbus.service", region) == "0"
    gpu = next(gpu for gpu in rig.gpus if gpu.region == region)
    beside = rig.holder(gpu, job)
    assert beside.do(f"alloc {size}") == "ok"
    assert beside.do("alloc 4096") == "ENOMEM"
    beside.end()
    wired.release(lease)
    eventually(lambda: limit(CGROUPS / "system.slice", region) == "0")
    command("systemctl", "stop", "rig-job")
