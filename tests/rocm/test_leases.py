"""Real ROCm under leases of an agent that reads the fake machine as a real node."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .conftest import Fake, Ran

pytestmark = [pytest.mark.rocm, pytest.mark.root, pytest.mark.cgroup2]
MIB = 1 << 20


def leased(fake: Fake, grant: str, program: str, *words: str, before: tuple[str, ...] = ()) -> Ran:
    """Run the program under `gpulease run` with *grant*; *before* goes before it, as `env -u NAME`."""
    run = (sys.executable, "-m", "gpulease", "run", *grant.split(), "--", *before, program, *words)
    return fake("tests/fakekfd/with_agent", *run, options=["--gpus", "2"], PYTHON=sys.executable)


@pytest.fixture
def installed() -> None:
    """Skips without the machine's own ROCm."""
    if not Path("/usr/bin/rocminfo").exists():
        pytest.skip("needs the packages rocminfo and libamdhip64-5")


@pytest.mark.usefixtures("installed")
class TestLease:
    """One program, one lease."""

    def test_one_gpu(self, fake: Fake, program: str) -> None:
        """A lease shows its own GPU alone, and every queue gets the lease's CUs."""
        ran = leased(fake, "--cu 25% --vram 4G", program, "devices", "stream", "stream")
        assert ran.lines[0] == "devices 1 hipSuccess", ran.errors
        assert set(ran.masks().values()) == {"ffffff"}

    def test_memory_over_the_slice(self, fake: Fake, program: str) -> None:
        """Over its slice a program gets hipErrorOutOfMemory, and the kernel was not even asked."""
        steps = ("malloc=2048", "malloc=3000", "async=3000", "cycle=1024")
        ran = leased(fake, "--cu 25% --vram 4G", program, *steps)
        assert ran.lines[0] == "malloc 2048 hipSuccess", ran.errors
        assert ran.lines[1] == "malloc 3000 hipErrorOutOfMemory"
        assert ran.lines[2] in ("async 3000 hipErrorOutOfMemory", "async 3000 nothing")
        assert ran.lines[3] == "cycle 1024 hipSuccess"
        assert ran.vram(2048 * MIB) == [0]
        assert ran.vram(3000 * MIB) == []
        assert ran.state["gpus"][0]["peak"] <= 4096 * MIB

    def test_a_wider_stream_mask(self, fake: Fake, program: str) -> None:
        """A program's own mask goes no further than its lease's."""
        ran = leased(fake, "--cu 25% --vram 4G", program, "mask=ffffffffff")
        assert set(ran.masks().values()) == {"ffffff"}

    def test_a_lost_environment(self, fake: Fake, program: str) -> None:
        """A program that drops HSA_CU_MASK has the lease's CUs all the same."""
        ran = leased(fake, "--cu 25% --vram 4G", program, "stream", before=("env", "-u", "HSA_CU_MASK"))
        assert set(ran.masks().values()) == {"ffffff"}

    def test_managed_memory(self, fake: Fake, program: str) -> None:
        """Managed memory over the slice is refused, too."""
        ran = leased(fake, "--cu 25% --vram 4G", program, "managed=5000", "managed=512")
        assert ran.lines[0].startswith("managed 5000 hipError")
        assert ran.lines[1] == "managed 512 hipSuccess"

    def test_nothing_stays(self, fake: Fake, program: str) -> None:
        """After the program's end the kernel counts nothing, and has no process left."""
        ran = leased(fake, "--cu 25% --vram 4G", program, "malloc=2048")
        assert ran.lines == ["malloc 2048 hipSuccess"], ran.errors
        assert [gpu["used"] for gpu in ran.state["gpus"]] == [0, 0]
        assert ran.state["processes"] == []
