"""VRAM limits on imitated kernels: good ones, those that drop a limit silently, those without dmem."""

from __future__ import annotations

import errno
import os

import pytest

from nodeagent.adapters.cgroup import OpenCgroup
from nodeagent.adapters.dmem import DmemController, kernel_write
from nodeagent.domain.errors import OutsideFault

A, B = "drm/0000:c1:00.0/vram", "drm/0000:c2:00.0/vram"
GIB = 2**30
LEASE = "/gpulease.slice/gpulease-7.slice"


class ImitatedKernel:
    """Takes writes to dmem files as dmem.c does: one region a write, the other lines stay."""

    def __init__(self) -> None:
        self.written: list[tuple[str, str]] = []

    def __call__(self, cgroup: OpenCgroup, name: str, text: str) -> None:
        self.written.append((name, text))
        lines = dict(line.split() for line in (cgroup.read(name) or "").splitlines())
        region, value = text.split()
        if region not in lines:
            raise OSError(errno.EINVAL, "Invalid argument")
        lines[region] = value
        cgroup.write(name, "".join(f"{at} {held}\n" for at, held in lines.items()))


class SilentKernel(ImitatedKernel):
    """Up to 7.2: a limit below the usage is taken without an error, and the old one stays."""

    def __call__(self, cgroup: OpenCgroup, name: str, text: str) -> None:
        self.written.append((name, text))


@pytest.fixture
def node(plain):
    """A node with two regions and one lease's cgroup."""
    plain.cgroup(
        "/", cgroup__controllers="cpu memory dmem\n", dmem__capacity=f"{A} {64 * GIB}\n{B} {64 * GIB}\n"
    )
    plain.ref = plain.cgroup(
        LEASE,
        dmem__max=f"{A} max\n{B} max\n",
        dmem__min=f"{A} 0\n{B} 0\n",
        dmem__current=f"{A} 4096\n{B} 0\n",
    )
    return plain


def test_capacity_is_bytes_by_region(node):
    """Each region's size is told."""
    dmem = DmemController(node.tree)
    assert dmem.unavailable() is None
    assert dmem.capacity() == {A: 64 * GIB, B: 64 * GIB}


def test_a_limit_is_maximum_and_minimum_of_one_region(node):
    """One write a file and region, and the other region is untouched."""
    kernel = ImitatedKernel()
    dmem = DmemController(node.tree, write=kernel)
    dmem.limit(node.ref, A, 16 * GIB)
    assert kernel.written == [("dmem.max", f"{A} {16 * GIB}\n"), ("dmem.min", f"{A} {16 * GIB}\n")]
    assert dmem.limits(node.ref) == {A: 16 * GIB, B: None}
    dmem.limit(node.ref, B, 0)
    assert dmem.limits(node.ref) == {A: 16 * GIB, B: 0}


def test_a_limit_that_the_kernel_dropped_is_a_fault(node):
    """kernel/cgroup/dmem.c up to 7.2: success is not believed, what is read back is."""
    dmem = DmemController(node.tree, write=SilentKernel())
    with pytest.raises(OutsideFault, match=r"dmem\.max: .* was written, max is in force"):
        dmem.limit(node.ref, A, GIB)


def test_another_limit_in_force_is_named(node):
    """A limit that stays at an older value is told with that value."""
    node.cgroup(LEASE, dmem__max=f"{A} 7\n{B} max\n")
    with pytest.raises(OutsideFault, match="7 is in force"):
        DmemController(node.tree, write=SilentKernel()).limit(node.ref, A, GIB)


@pytest.mark.parametrize("region", ["drm/0000:c9:00.0/vram", "", " ", A[:-1], f"{A} 1\n{B}", f"{A}\n", "max"])
def test_an_unknown_region_is_never_written(node, region: str):
    """A name that the kernel does not list, or that could be read as more, is refused before the write."""
    kernel = ImitatedKernel()
    with pytest.raises(OutsideFault, match="no region"):
        DmemController(node.tree, write=kernel).limit(node.ref, region, GIB)
    assert kernel.written == []


@pytest.mark.parametrize("limit_bytes", [-1, 2**51, 2**64])
def test_a_number_that_the_kernel_would_misread_is_never_written(node, limit_bytes: int):
    """Negative numbers, and those that the kernel reads as unlimited, are refused before the write."""
    kernel = ImitatedKernel()
    with pytest.raises(OutsideFault, match="no limit"):
        DmemController(node.tree, write=kernel).limit(node.ref, A, limit_bytes)
    assert kernel.written == []


@pytest.mark.parametrize("region", ["drm/0000:c1:00.0/vram extra", "", " "])
def test_a_region_whose_name_would_be_misread_is_never_written(node, region: str):
    """A name with a blank is two words to the kernel, the second one the limit: even where it is listed."""
    node.cgroup("/", dmem__capacity=f"{A} {64 * GIB}\n{region} {64 * GIB}\n")
    kernel = ImitatedKernel()
    with pytest.raises(OutsideFault, match="no region"):
        DmemController(node.tree, write=kernel).limit(node.ref, region, GIB)
    assert kernel.written == []


def test_the_write_does_not_wait_for_eviction(node, monkeypatch):
    """dmem.max is opened O_NONBLOCK: from 7.3 on the kernel else evicts before it answers."""
    flags: list[int] = []
    with node.tree.open(node.ref) as cgroup:
        monkeypatch.setattr(
            OpenCgroup, "write", lambda self, name, text, *, flags=0, seen=flags: seen.append(flags)
        )
        kernel_write(cgroup, "dmem.max", f"{A} 1\n")
    assert flags == [os.O_NONBLOCK]


def test_a_cgroup_without_the_files_says_what_to_enable(plain, node):
    """A missing dmem.max points at the parent's subtree_control."""
    bare = node.cgroup("/gpulease.slice/gpulease-8.slice")
    with pytest.raises(OutsideFault, match=r"\+dmem is missing"):
        DmemController(node.tree).limit(bare, A, GIB)
    assert DmemController(node.tree).limits(bare) == {}
    assert DmemController(node.tree).current(bare) == {}


def test_a_limit_on_a_cgroup_made_anew_is_not_set(node):
    """The recorded cgroup is limited or none."""
    with pytest.raises(FileNotFoundError):
        DmemController(node.tree).limit(type(node.ref)(node.ref.path, node.ref.inode + 1), A, GIB)


def test_current_is_bytes_by_region(node):
    """What is charged is told for each region."""
    assert DmemController(node.tree).current(node.ref) == {A: 4096, B: 0}


@pytest.mark.parametrize(
    ("controllers", "capacity", "reason"),
    [
        ("cpu memory\n", f"{A} 1\n", "CONFIG_CGROUP_DMEM"),
        ("", "", "CONFIG_CGROUP_DMEM"),
        ("cpu dmemory\n", f"{A} 1\n", "CONFIG_CGROUP_DMEM"),
        ("cpu dmem\n", "", "no region"),
        ("cpu dmem\n", "garbled", "no region"),
    ],
)
def test_a_node_without_the_controller_says_why(plain, controllers: str, capacity: str, reason: str):
    """Both the controller's name and a region are needed, and the missing one is named."""
    plain.cgroup("/", cgroup__controllers=controllers, dmem__capacity=capacity)
    dmem = DmemController(plain.tree)
    assert reason in (dmem.unavailable() or "")


def test_enabling_stops_at_processes_and_says_where(node, monkeypatch):
    """An ancestor that holds processes itself cannot give the controller to its children."""

    def busy(self: OpenCgroup, name: str, text: str, *, flags: int = 0) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(OpenCgroup, "write", busy)
    with pytest.raises(OutsideFault, match=r"subtree_control: \+dmem: processes live in this cgroup"):
        DmemController(node.tree).enable(LEASE)


@pytest.mark.cgroup2
def test_this_kernel_answers(tree):
    """On the real tree the controller is there or the reason is."""
    dmem = DmemController(tree)
    offered = "dmem" in (tree.mount / "cgroup.controllers").read_text().split()
    assert (dmem.unavailable() is None) == (offered and bool(dmem.capacity()))
