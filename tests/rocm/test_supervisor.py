"""Real ROCm under the supervisor: nothing is loaded into the program, its calls are answered from outside."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .conftest import Fake, Ran
from .supervised import CANNOT

pytestmark = [pytest.mark.rocm, pytest.mark.root, pytest.mark.cgroup2]
MIB = 1 << 20
LIMIT_MIB = 4000


def supervised(fake: Fake, *command: str) -> Ran:
    """Run *command* with a lease of LIMIT_MIB and CUs 8 to 15."""
    if not Path("/usr/bin/rocminfo").exists():
        pytest.skip("needs the packages rocminfo and libamdhip64-5")
    ran = fake(sys.executable, "-m", "tests.rocm.supervised", str(LIMIT_MIB), *command)
    if ran.code == CANNOT:
        pytest.skip(ran.errors.strip())
    return ran


def test_memory_over_the_limit(fake: Fake, program: str) -> None:
    """Over its limit a program gets hipErrorOutOfMemory, and the kernel is not asked."""
    ran = supervised(fake, program, "malloc=2048", "malloc=3000", "cycle=1024", "cycle=1024")
    assert ran.lines[:2] == ["malloc 2048 hipSuccess", "malloc 3000 hipErrorOutOfMemory"], ran.errors
    assert ran.lines[2:] == ["cycle 1024 hipSuccess", "free hipSuccess"] * 2
    assert ran.vram(2048 * MIB) == [0]
    assert ran.vram(3000 * MIB) == []
    assert ran.state["gpus"][0]["peak"] <= LIMIT_MIB * MIB


def test_managed_memory(fake: Fake, program: str) -> None:
    """Managed memory over the limit is refused."""
    ran = supervised(fake, program, "managed=5000")
    assert ran.lines[0].startswith("managed 5000 hipError")
    assert 5000 * MIB not in [entry["size"] for entry in ran.logged("svm")]


def test_a_stream_mask(fake: Fake, program: str) -> None:
    """A program's own mask reaches the kernel only within its lease's CUs."""
    ran = supervised(fake, program, "mask=ffffff")
    assert ran.lines[0] == "stream ffffff hipSuccess"
    assert [entry["mask"] for entry in ran.logged("mask")] == ["ff00"]
