"""Real ROCm without a lease: the fake kernel is one that it accepts, and what reaches the kernel is seen."""

from __future__ import annotations

import errno

import pytest

from .conftest import Fake

pytestmark = [pytest.mark.rocm, pytest.mark.root]
MIB = 1 << 20


def test_rocminfo_finds_the_gpus(fake: Fake, release: list[str]) -> None:
    """The release's own rocminfo lists each fake GPU."""
    ran = fake("rocminfo", options=["--gpus", "2", *release])
    assert ran.code == 0, ran.errors
    assert sum(line.split() == ["Name:", "gfx90a"] for line in ran.lines) == 2


def test_memory_reaches_the_kernel(fake: Fake, release: list[str], program: str) -> None:
    """hipMalloc and hipMallocAsync ask for VRAM, hipMallocManaged for shared memory, in the asked size."""
    ran = fake(program, "malloc=700", "async=300", "managed=500", options=release)
    assert ran.lines == ["malloc 700 hipSuccess", "async 300 hipSuccess", "managed 500 hipSuccess"]
    assert ran.vram(700 * MIB) == [0]
    assert ran.vram(300 * MIB) == [0]
    assert 500 * MIB in [entry["size"] for entry in ran.logged("svm")]


def test_the_kernels_refusal_is_hips(fake: Fake, release: list[str], program: str) -> None:
    """Memory over the GPU's size gives hipErrorOutOfMemory, and freed memory can be had again."""
    ran = fake(program, "malloc=9000", "cycle=6000", "cycle=6000", options=["--vram", "8", *release])
    assert ran.lines[0] == "malloc 9000 hipErrorOutOfMemory"
    assert ran.lines[1:] == ["cycle 6000 hipSuccess", "free hipSuccess"] * 2
    assert ran.state["gpus"][0]["used"] == 0


def test_memory_info(fake: Fake, release: list[str], program: str) -> None:
    """hipMemGetInfo knows the GPU's size and what the program took."""
    ran = fake(program, "malloc=2048", "info", options=["--vram", "8", *release])
    word, free, total, code = ran.lines[1].split()
    assert (word, total, code) == ("info", "8192", "hipSuccess")
    assert int(free) <= 8192 - 2048


def test_stream_masks(fake: Fake, release: list[str], program: str) -> None:
    """A stream with a CU mask has that mask on its queue, another stream none."""
    ran = fake(program, "stream", "mask=ff00", options=release)
    assert ran.lines == [
        "stream - hipSuccess",
        "used hipSuccess",
        "stream ff00 hipSuccess",
        "used hipSuccess",
    ]
    assert sorted(set(ran.masks().values())) == ["", "ff00"]


def test_several_gpus(fake: Fake, release: list[str], program: str) -> None:
    """Memory is counted at the GPU that the program chose."""
    ran = fake(program, "devices", "device=1", "malloc=1024", options=["--gpus", "3", *release])
    assert ran.lines == ["devices 3 hipSuccess", "device 1 hipSuccess", "malloc 1024 hipSuccess"]
    asked = [e["gpu_id"] for e in ran.logged("alloc") if e["size"] == 1024 * MIB]
    assert asked == [ran.state["gpus"][1]["gpu_id"]]


def test_environment_mask(fake: Fake, release: list[str], program: str) -> None:
    """HSA_CU_MASK puts its mask on every queue."""
    ran = fake(program, "stream", "stream", options=release, HSA_CU_MASK="0:0-15")
    assert set(ran.masks().values()) == {"ffff"}


@pytest.mark.parametrize("mask", ["0:garbage", "0:200-210", "x"])
@pytest.mark.way_out(
    "garbage in HSA_CU_MASK",
    tier="mask",
    outcome="not held: ROCm ignores the variable, and the program has all CUs",
)
def test_a_wrong_environment_mask_is_no_mask(fake: Fake, release: list[str], program: str, mask: str) -> None:
    """ROCm ignores a mask that it cannot read, so the variable alone is no fence."""
    ran = fake(program, "stream", options=release, HSA_CU_MASK=mask)
    assert set(ran.masks().values()) == {""}


def test_pairs(fake: Fake, program: str) -> None:
    """Where CUs come in pairs, the kernel or ROCm refuses half of one."""
    ran = fake(program, "mask=1", options=["--machine", "rx6900xt"])
    assert ran.lines[0] != "stream 1 hipSuccess"
    assert not [entry for entry in ran.logged("mask") if entry["code"] not in (0, errno.EINVAL)]
    assert "1" not in ran.masks().values()
