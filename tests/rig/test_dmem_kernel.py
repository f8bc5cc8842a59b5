"""adapters/dmem.py on a kernel that enforces: what is limited, what is refused, what is given back."""

from __future__ import annotations

import errno
import os
import subprocess

import pytest

from nodeagent.adapters import machine
from nodeagent.domain.errors import OutsideFault

pytestmark = pytest.mark.rig

MIB = 2**20
SILENT = (7, 2)  # up to here a limit below the usage is dropped without an error


def test_the_regions_are_those_of_the_simulated_machine(rig):
    """fakegpu has the cards of the machine file that the agent simulates here."""
    files = machine.find("mi300x-spx").content().files
    totals = {path.split("/")[4]: int(text) for path, text in files.items() if path.endswith("vram_total")}
    assert rig.dmem.unavailable() is None
    assert rig.dmem.capacity() == {f"drm/{pci}/vram": size for pci, size in totals.items()}


def test_enabling_reaches_from_the_root_to_the_lease(rig):
    """Every ancestor passes dmem on, so that the next lease has its files from the start."""
    first = rig.lease(1)
    for directory in (rig.tree.mount, rig.directory(first).parent):
        assert "dmem" in (directory / "cgroup.subtree_control").read_text().split()
    second = rig.tree.create(2)
    assert rig.dmem.limits(second) == {gpu.region: None for gpu in rig.gpus}
    rig.tree.remove(second)


def test_enabling_fails_where_processes_live_in_the_parent(rig):
    """The kernel's rule against processes beside children is told with the path that breaks it."""
    lease = rig.lease(1)
    inner = rig.directory(lease) / "inner"
    inner.mkdir()
    rig.holder(rig.gpus[0], rig.directory(lease))
    with pytest.raises(OutsideFault, match=r"gpulease_rig-1\.slice/cgroup\.subtree_control.*processes live"):
        rig.dmem.enable(f"{lease.path}/inner")


def test_a_limit_is_read_back_and_touches_one_region(rig):
    """dmem.max and dmem.min of one region, to the byte; the others stay unlimited."""
    lease = rig.lease(1)
    one, other = rig.gpus[0], rig.gpus[1]
    rig.dmem.limit(lease, one.region, 1_000_001)
    limits = rig.dmem.limits(lease)
    assert limits[one.region] == 1_000_001
    assert {limits[gpu.region] for gpu in rig.gpus[1:]} == {None}
    assert f"{one.region} 1000001\n" in (rig.directory(lease) / "dmem.min").read_text()
    rig.dmem.limit(lease, other.region, 0)
    assert rig.dmem.limits(lease)[one.region] == 1_000_001
    assert rig.dmem.limits(lease)[other.region] == 0


def test_several_regions_in_one_write_are_no_portable_limit(rig):
    """From 7.3 on they are refused as a whole: one write a region is what the agent does."""
    lease = rig.lease(1)
    text = "".join(f"{gpu.region} {MIB}\n" for gpu in rig.gpus[:2])
    descriptor = os.open(rig.directory(lease) / "dmem.max", os.O_WRONLY)
    try:
        if rig.kernel > SILENT:
            with pytest.raises(OSError) as refused:
                os.write(descriptor, text.encode())
            assert refused.value.errno == errno.EINVAL
        else:
            os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def test_over_the_limit_is_refused_while_the_neighbour_works(rig):
    """ENOMEM for the one lease, as often as it tries; nothing for the other on the same GPU."""
    gpu = rig.gpus[0]
    small, large = rig.lease(1), rig.lease(2)
    rig.dmem.limit(small, gpu.region, 64 * MIB)
    rig.dmem.limit(large, gpu.region, 512 * MIB)
    one, other = rig.holder(gpu, rig.directory(small)), rig.holder(gpu, rig.directory(large))
    assert one.do("alloc 48M") == "ok"
    assert [one.do("alloc 48M") for _ in range(3)] == ["ENOMEM"] * 3
    assert other.do("alloc 256M") == "ok"
    assert (rig.charged(small, gpu), rig.charged(large, gpu)) == (48 * MIB, 256 * MIB)
    assert one.do("alloc 16M") == "ok"
    assert one.do("alloc 4K") == "ENOMEM"
    assert one.do("free all") == "ok"
    assert rig.charged(small, gpu) == 0
    assert rig.charged(large, gpu) == 256 * MIB


def test_each_gpu_has_a_limit_of_its_own(rig):
    """A lease on two GPUs is limited on each by that GPU's share."""
    lease = rig.lease(1)
    for gpu, mebibytes in zip(rig.gpus[:2], (64, 128), strict=True):
        rig.dmem.limit(lease, gpu.region, mebibytes * MIB)
    first, second = (rig.holder(gpu, rig.directory(lease)) for gpu in rig.gpus[:2])
    assert (first.do("alloc 96M"), second.do("alloc 96M")) == ("ENOMEM", "ok")
    assert (first.do("alloc 64M"), second.do("alloc 64M")) == ("ok", "ENOMEM")


def test_all_processes_of_a_lease_share_its_limit(rig):
    """Two processes get together what one would get."""
    gpu, lease = rig.gpus[0], rig.lease(1)
    rig.dmem.limit(lease, gpu.region, 64 * MIB)
    one, other = (rig.holder(gpu, rig.directory(lease)) for _ in range(2))
    assert (one.do("alloc 48M"), other.do("alloc 48M"), other.do("alloc 16M")) == ("ok", "ENOMEM", "ok")


def test_cgroups_made_inside_the_lease_count_for_it(rig):
    """A container or job step inside cannot get more, whatever limit it sets itself."""
    gpu, lease = rig.gpus[0], rig.lease(1)
    rig.dmem.limit(lease, gpu.region, 64 * MIB)
    inner = rig.directory(lease) / "inner" / "innermost"
    inner.mkdir(parents=True)
    rig.dmem.enable(f"{lease.path}/inner")
    (rig.directory(lease) / "inner" / "dmem.max").write_text(f"{gpu.region} max")
    holder = rig.holder(gpu, inner)
    assert holder.do("alloc 96M") == "ENOMEM"
    assert holder.do("alloc 48M") == "ok"
    assert rig.charged(lease, gpu) == 48 * MIB


def test_killing_everything_leaves_nothing_charged(rig, eventually):
    """After SIGKILL of all that lives in the lease, nested cgroups included, its usage is 0."""
    gpu, lease = rig.gpus[0], rig.lease(1)
    inner = rig.directory(lease) / "inner"
    inner.mkdir()
    for directory in (inner, inner, inner):
        assert rig.holder(gpu, directory).do("alloc 16M") == "ok"
    assert rig.charged(lease, gpu) == 48 * MIB
    with rig.tree.open(lease) as cgroup:
        cgroup.kill()
        eventually(lambda: not cgroup.populated())
    assert rig.charged(lease, gpu) == 0


def test_a_charge_stays_where_it_was_made(rig):
    """Moving a process in later does not move its VRAM: it must be in the lease before it allocates."""
    gpu, lease, other = rig.gpus[0], rig.lease(1), rig.lease(2)
    holder = rig.holder(gpu, rig.directory(other))
    assert holder.do("alloc 16M") == "ok"
    with rig.tree.open(lease) as cgroup:
        cgroup.move(holder.pid)
    assert (rig.charged(lease, gpu), rig.charged(other, gpu)) == (0, 16 * MIB)
    assert holder.do("alloc 32M") == "ok"
    assert (rig.charged(lease, gpu), rig.charged(other, gpu)) == (32 * MIB, 16 * MIB)


def test_a_limit_below_the_usage_is_in_force_or_a_fault(rig):
    """From 7.3 on it binds at once; before, the kernel drops it in silence and the agent says so."""
    gpu, lease = rig.gpus[0], rig.lease(1)
    holder = rig.holder(gpu, rig.directory(lease))
    assert holder.do("alloc 64M") == "ok"
    if rig.kernel > SILENT:
        rig.dmem.limit(lease, gpu.region, 32 * MIB)
        assert rig.charged(lease, gpu) == 64 * MIB, "set without waiting, so nothing was evicted"
        assert holder.do("alloc 4K") == "ENOMEM"
    else:
        with pytest.raises(OutsideFault, match=r"dmem\.max: .* was written, max is in force"):
            rig.dmem.limit(lease, gpu.region, 32 * MIB)
        assert holder.do("alloc 4K") == "ok"


def test_a_gpu_that_was_unplugged_has_no_region(rig):
    """Without the driver no limit can be set, and the fault says why; reloaded, every limit is gone."""
    gpu, lease = rig.gpus[0], rig.lease(1)
    rig.dmem.limit(lease, gpu.region, MIB)
    subprocess.run(["modprobe", "-r", "fakegpu"], check=True)
    try:
        assert "registers none" in (rig.dmem.unavailable() or "")
        with pytest.raises(OutsideFault, match="unplugged or renamed"):
            rig.dmem.limit(lease, gpu.region, MIB)
    finally:
        subprocess.run(["modprobe", "fakegpu"], check=True)
    assert rig.dmem.limits(lease)[gpu.region] is None
