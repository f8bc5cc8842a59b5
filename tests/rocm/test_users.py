"""A real HIP program of an ordinary user, in a lease of that user's."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from .machine import HOOK, MIB, ROOT, SUPERVISED, Node, Tier

pytestmark = [pytest.mark.rocm, pytest.mark.root, pytest.mark.cgroup2]
USER = 54_321
AS_USER = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--inh-caps=-all")
GRANT = ("--cu=25%", "--vram=4G", "--")


@pytest.fixture(scope="session")
def client(public: Path) -> str:
    """The client where every user can read it."""
    shutil.copytree(ROOT / "client/gpulease/gpulease", public / "client/gpulease")
    return str(public / "client")


@pytest.mark.parametrize("tier", [HOOK, SUPERVISED], ids=lambda tier: tier.name)
def test_a_users_program_is_held(
    node_for: Callable[..., Node], tier: Tier, client: str, program: str
) -> None:
    """Memory over the slice is refused and queues have its CUs, for a user without any rights."""
    (floor,) = (f"--require={kind}={level}" for kind, level in tier.require.items())
    run = ("env", f"PYTHONPATH={client}", "/usr/bin/python3", "-m", "gpulease", "run", floor, *GRANT)
    steps = ("devices", "malloc=2048", "malloc=3000", "managed=3002", "stream", "mask=ffffff000000")
    ran = node_for(tier).run(*AS_USER, *run, *tier.before, program, *steps)
    assert ran.lines[:3] == [
        "devices 1 hipSuccess",
        "malloc 2048 hipSuccess",
        "malloc 3000 hipErrorOutOfMemory",
    ], ran.errors
    assert ran.lines[3].startswith("managed 3002 hipError")
    assert ran.vram(2048 * MIB) == [0]
    assert (ran.vram(3000 * MIB), ran.masks()) == ([], {"ffffff"})
    assert ran.peaks()[0] <= 4096
