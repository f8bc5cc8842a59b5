"""fakegpu's faults, which others build upon: what a lease's cgroup and KFD's entries show during each."""

from __future__ import annotations

import contextlib
import stat
from pathlib import Path

import pytest

from nodeagent.domain.errors import OutsideFault

pytestmark = pytest.mark.rig

MIB = 2**20


def test_an_entry_shows_what_its_process_holds(rig, eventually):
    """By GPU, from the first open until the process is gone."""
    one, other = rig.gpus[:2]
    holder = rig.holder(one)
    assert (rig.held(holder.pid, one), rig.held(holder.pid, other)) == (0, 0)
    assert holder.do("alloc 16M") == "ok"
    assert (rig.held(holder.pid, one), rig.held(holder.pid, other)) == (16 * MIB, 0)
    holder.end()
    assert rig.held(holder.pid, one) is None


def test_charges_freed_late_outlive_process_and_entry(rig, eventually):
    """Neither an empty cgroup nor a vanished entry proves that the VRAM is free; the usage does."""
    gpu, lease = rig.gpus[0], rig.lease(1)
    rig.fault(free_delay_ms=300)
    holder = rig.holder(gpu, rig.directory(lease))
    assert holder.do("alloc 16M") == "ok"
    holder.end()
    assert rig.held(holder.pid, gpu) is None
    eventually(lambda: rig.charged(lease, gpu) == 0)


def test_charges_that_are_never_freed_stay_until_told(rig, eventually):
    """An empty cgroup whose usage never falls."""
    gpu, lease = rig.gpus[0], rig.lease(1)
    rig.fault(free_delay_ms=-1)
    holder = rig.holder(gpu, rig.directory(lease))
    assert holder.do("alloc 16M") == "ok"
    holder.end()
    with rig.tree.open(lease) as cgroup:
        assert not cgroup.populated()
    assert rig.held(holder.pid, gpu) is None
    assert rig.charged(lease, gpu) == 16 * MIB
    rig.fault(free_delay_ms=0)
    eventually(lambda: rig.charged(lease, gpu) == 0)


@pytest.mark.parametrize("where", ["alloc", "close"])
def test_a_stuck_process_survives_its_kill(rig, eventually, where):
    """In state D it holds cgroup and VRAM after SIGKILL, and ends with both when the driver lets go."""
    gpu, lease = rig.gpus[0], rig.lease(1)
    holder = rig.holder(gpu, rig.directory(lease))
    if where == "close":
        assert holder.do("alloc 16M") == "ok"
    rig.fault(hang=where)
    if where == "alloc":
        holder.send("alloc 16M")
        eventually(lambda: holder.state() == "D")
    with rig.tree.open(lease) as cgroup:
        cgroup.kill()
        eventually(lambda: holder.state() == "D")
        assert cgroup.populated()
        assert rig.charged(lease, gpu) == 16 * MIB
        rig.fault(hang="never")
        eventually(lambda: not cgroup.populated())
        assert rig.charged(lease, gpu) == 0


def test_a_removed_cgroup_proves_nothing_of_a_dying_process(rig, eventually):
    """The kernel may let the cgroup of one that is stuck in its exit go: its VRAM stays charged above."""
    gpu, lease = rig.gpus[0], rig.lease(1)
    above = rig.tree.resolve(rig.tree.instance)
    holder = rig.holder(gpu, rig.directory(lease))
    assert holder.do("alloc 16M") == "ok"
    rig.fault(hang="close")
    holder.kill()
    eventually(lambda: holder.state() == "D")
    with rig.tree.open(lease) as cgroup:
        assert cgroup.populated()
    with contextlib.suppress(OutsideFault):
        rig.tree.remove(lease)
    assert rig.charged(above, gpu) == 16 * MIB
    rig.fault(hang="never")
    eventually(lambda: rig.charged(above, gpu) == 0)


def test_only_root_sets_faults(rig):
    """Anyone may read the parameters; nobody else may write them."""
    for name in ("free_delay_ms", "hang", "limit_errno"):
        found = Path(f"/sys/module/fakegpu/parameters/{name}").stat()
        assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (0, 0o644)


def test_the_refusal_s_errno_can_be_chosen(rig):
    """0 gives the controller's own, which no user of amdgpu sees."""
    gpu, lease = rig.gpus[0], rig.lease(1)
    rig.dmem.limit(lease, gpu.region, MIB)
    holder = rig.holder(gpu, rig.directory(lease))
    assert holder.do("alloc 2M") == "ENOMEM"
    rig.fault(limit_errno=0)
    assert holder.do("alloc 2M") == "EAGAIN"
