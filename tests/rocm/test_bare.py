"""Real ROCm without a lease: the fake kernel is one that it accepts, and what reaches the kernel is seen."""

from __future__ import annotations

import errno

import pytest

from .machine import MIB, Bare

pytestmark = [pytest.mark.rocm, pytest.mark.root]


def test_rocminfo_finds_the_gpus(rocm: Bare) -> None:
    """The release's own rocminfo lists each fake GPU."""
    ran = rocm("rocminfo", options=("--gpus", "2"))
    assert ran.code == 0, ran.errors
    assert sum(line.split() == ["Name:", "gfx90a"] for line in ran.lines) == 2


def test_memory_reaches_the_kernel(rocm: Bare, program: str) -> None:
    """hipMalloc and hipMallocAsync ask for VRAM, hipMallocManaged for shared memory, in the asked size."""
    ran = rocm(program, "malloc=700", "async=300", "managed=500")
    assert ran.lines == ["malloc 700 hipSuccess", "async 300 hipSuccess", "managed 500 hipSuccess"]
    assert ran.vram(700 * MIB) == [0]
    assert ran.vram(300 * MIB) == [0]
    assert 500 * MIB in [entry["size"] for entry in ran.logged("svm")]


def test_the_kernels_refusal_is_hips(rocm: Bare, program: str) -> None:
    """Memory over the GPU's size gives hipErrorOutOfMemory, and freed memory can be had again."""
    ran = rocm(program, "malloc=9000", "cycle=6000", "cycle=6000", options=("--vram", "8"))
    assert ran.lines[0] == "malloc 9000 hipErrorOutOfMemory"
    assert ran.lines[1:] == ["cycle 6000 hipSuccess", "free hipSuccess"] * 2
    assert ran.state["gpus"][0]["used"] == 0


def test_memory_info(rocm: Bare, program: str) -> None:
    """hipMemGetInfo knows the GPU's size and what the program took."""
    ran = rocm(program, "malloc=2048", "info", options=("--vram", "8"))
    word, free, total, code = ran.lines[1].split()
    assert (word, total, code) == ("info", "8192", "hipSuccess")
    assert int(free) <= 8192 - 2048


def test_stream_masks(rocm: Bare, program: str) -> None:
    """A stream with a CU mask has that mask on its queue, another stream none."""
    ran = rocm(program, "stream", "mask=ff00")
    assert ran.lines == [
        "stream - hipSuccess",
        "used hipSuccess",
        "stream ff00 hipSuccess",
        "used hipSuccess",
    ]
    assert ran.masks() == {"", "ff00"}


def test_several_gpus(rocm: Bare, program: str) -> None:
    """Memory is counted at the GPU that the program chose."""
    ran = rocm(program, "devices", "device=1", "malloc=1024", options=("--gpus", "3"))
    assert ran.lines == ["devices 3 hipSuccess", "device 1 hipSuccess", "malloc 1024 hipSuccess"]
    asked = [e["gpu_id"] for e in ran.logged("alloc") if e["size"] == 1024 * MIB]
    assert asked == [ran.state["gpus"][1]["gpu_id"]]


def test_environment_mask(rocm: Bare, program: str) -> None:
    """HSA_CU_MASK puts its mask on every queue."""
    ran = rocm(program, "stream", "stream", HSA_CU_MASK="0:0-15")
    assert ran.masks() == {"ffff"}


@pytest.mark.parametrize("mask", ["0:garbage", "0:200-210", "x"])
def test_a_wrong_environment_mask_is_no_mask(rocm: Bare, program: str, mask: str) -> None:
    """ROCm ignores a mask that it cannot read, so the variable alone is no fence."""
    ran = rocm(program, "stream", HSA_CU_MASK=mask)
    assert ran.masks() == {""}


def test_pairs(rocm: Bare, program: str) -> None:
    """Where CUs come in pairs no half of one is had: the kernel refuses it, or HIP's bits mean pairs."""
    ran = rocm(program, "mask=1", options=("--machine", "rx6900xt"))
    if rocm.release.root:
        assert ran.masks() == {"", "3"}
    else:
        assert ran.lines == ["stream 1 hipErrorOutOfMemory"]
        assert [entry["code"] for entry in ran.logged("mask")] == [errno.EINVAL]
        assert ran.masks() == {""}
