"""Real ROCm in what a CDI device gives, with nothing loaded into the program."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest

from .machine import GIB, MASK, MIB, Node, Ran, Release

pytestmark = [pytest.mark.rocm, pytest.mark.root, pytest.mark.cgroup2]
PCI = "0000:64:00.0"  # the second of three
SLICE = {"cu_percent": 25, "vram_bytes": 4 * GIB, "device": [PCI]}
SHOWN = 4096 - 64
CUS = "ffffff"
Given = Callable[..., Ran]


@pytest.fixture
def given(release: Release, node_for: Callable[..., Node]) -> Given:
    """Run a program of each release in what a lease's CDI file says, without the hook."""
    node = node_for(MASK)

    def given(*command: str, slice_: dict[str, object] = SLICE) -> Ran:
        words = (sys.executable, "-m", "tests.rocm.given", json.dumps([slice_]), release.root or "/")
        return node.run(*words, *release.enter, *command)

    return given


def test_the_slice_is_the_gpu(given: Given, program: str) -> None:
    """One GPU of the slice's size, its CUs on every queue; no variable of the device's hides it."""
    ran = given(program, "devices", "stream")
    assert ran.lines == ["devices 1 hipSuccess", "stream - hipSuccess", "used hipSuccess"], ran.errors
    assert (ran.masks(1), ran.masks(0)) == ({CUS}, set())


def test_a_whole_device_has_no_mask(given: Given, program: str) -> None:
    """A variable that says nothing is none to ROCm."""
    ran = given(program, "devices", "stream", slice_={"device": [PCI]})
    assert ran.lines[0] == "devices 1 hipSuccess", ran.errors
    assert ran.masks(1) == {""}


def test_rocm_itself_tells_the_slices_size(given: Given, release: Release, program: str) -> None:
    """The total is the slice's; what is free is, too, in HIP 5.2: later ones ask the kernel."""
    ran = given(program, "info", "malloc=1024", "info")
    first, last = (64 << 10, 63 << 10) if release.root else (SHOWN, SHOWN - 1024)
    told = [f"info {free} {SHOWN} hipSuccess" for free in (first, last)]
    assert [line for line in ran.lines if line.startswith("info")] == told, ran.errors


@pytest.mark.way_out(
    "one allocation over the size that memory banks show",
    tier="banks",
    outcome="hipErrorOutOfMemory from ROCm itself; the kernel is not asked",
)
def test_one_allocation_over_the_slice(given: Given, program: str) -> None:
    """ROCm does not try what its bank has not got."""
    ran = given(program, f"malloc={SHOWN + 64}")
    assert ran.lines == [f"malloc {SHOWN + 64} hipErrorOutOfMemory"], ran.errors
    assert ran.vram((SHOWN + 64) * MIB) == []


@pytest.mark.way_out(
    "several allocations that are over the size of the memory banks together",
    tier="banks",
    outcome="not held: each is compared with the bank by itself",
)
def test_several_allocations_over_the_slice(given: Given, program: str) -> None:
    """ROCm compares each with the bank, and no sum: the other tiers are for that."""
    ran = given(program, "malloc=3000", "malloc=3000")
    assert ran.lines == ["malloc 3000 hipSuccess"] * 2, ran.errors
    assert ran.peaks()[1] > 4096
