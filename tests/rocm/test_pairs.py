"""Real ROCm in leases of a GPU whose CUs come in pairs: its driver refuses masks with half of one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .machine import HOOK, SUPERVISED, Leased, Node, Release

pytestmark = [pytest.mark.rocm, pytest.mark.root, pytest.mark.cgroup2]
GRANT = "--cu 12 --shape exact --vram 4G"
CUS = "3f3f"
FIRST_OF_EACH = 0x5555_5555_5555_5555_5555


@pytest.fixture(params=[HOOK, SUPERVISED], ids=lambda tier: tier.name)
def paired(request: pytest.FixtureRequest, release: Release, node_for: Callable[..., Node]) -> Leased:
    """Leases of each tier on Radeon RX 6900 XT."""
    return Leased(release, request.param, node_for(request.param, "rx6900xt"))


def test_queues_have_whole_pairs(paired: Leased, program: str) -> None:
    """The lease's mask is one that the driver takes, on every queue."""
    ran = paired(GRANT, program, "stream", "malloc=5000")
    assert ran.lines == ["stream - hipSuccess", "used hipSuccess", "malloc 5000 hipErrorOutOfMemory"]
    assert ran.masks() == {CUS}
    assert {entry["code"] for entry in ran.logged("mask")} == {0}


@pytest.mark.parametrize("asked", ["1", "6", "ffffffffff"])
def test_a_programs_own_mask_is_of_whole_pairs(paired: Leased, program: str, asked: str) -> None:
    """Half a pair, or halves of two, come to whole pairs of the lease's."""
    ran = paired(GRANT, program, "stream", f"mask={asked}", before=("env", "-u", "HSA_CU_MASK"))
    assert ran.lines[2:] == [f"stream {asked} hipSuccess", "used hipSuccess"], ran.errors
    for mask in {int(mask, 16) for mask in ran.masks() if mask}:
        assert is_of_pairs(mask)
        assert mask & ~int(CUS, 16) == 0


def is_of_pairs(mask: int) -> bool:
    """Whether each pair is in *mask* whole or not at all."""
    return mask & FIRST_OF_EACH == mask >> 1 & FIRST_OF_EACH
