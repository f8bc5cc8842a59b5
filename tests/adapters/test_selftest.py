"""The self-test of VRAM limits: what a probe's allocations prove, in a real scratch cgroup."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.adapters.cgroup import CgroupRef, CgroupTree
from nodeagent.adapters.selftest import FITS_BYTES, KFD_PROBE, LIMIT_BYTES, OVER_BYTES, SelfTest
from nodeagent.domain.errors import OutsideFault

pytestmark = pytest.mark.cgroup2
REGION = "drm/0000:c1:00.0/vram"


class Dmem:
    """Takes every limit, and charges what it is told to."""

    def __init__(self, charged: int = FITS_BYTES) -> None:
        self.charged = charged
        self.limited: list[tuple[str, int]] = []

    def enable(self, path: str) -> None:
        return

    def limit(self, ref: CgroupRef, region: str, limit_bytes: int) -> None:
        self.limited.append((region, limit_bytes))

    def current(self, ref: CgroupRef) -> dict[str, int]:
        return {REGION: self.charged}


def tried(tree: CgroupTree, dmem: Dmem, script: str) -> str | None:
    """Run a probe of *script*, in which $1 is the render node, $2 the gpu_id and $3 the bytes."""
    return SelfTest(tree, dmem, ("/bin/sh", "-c", script, "probe")).run(REGION, "/dev/dri/renderD128", 7)


def test_what_is_charged_and_refused_over_the_limit_is_proof(tree: CgroupTree) -> None:
    """The limit comes first; the scratch cgroup is gone after."""
    dmem = Dmem()
    fails_over = f'[ "$3" -lt {OVER_BYTES} ] || exit 1; echo held; read -r _'
    assert tried(tree, dmem, fails_over) is None
    assert dmem.limited == [(REGION, LIMIT_BYTES)]
    assert not (tree.mount / tree.instance[1:] / "selftest").exists()


def test_the_probe_runs_in_the_scratch_cgroup(tree: CgroupTree) -> None:
    """Memory is charged to where its process is at that instant."""
    why = tried(tree, Dmem(), "grep ^0:: /proc/self/cgroup; exit 1")
    assert f"0::{tree.instance}/selftest" in (why or "")


@pytest.mark.parametrize(
    ("charged", "script", "why"),
    [
        (0, "echo held; read -r _", "has the files and not the effect"),
        (FITS_BYTES, "echo held; read -r _", "were allocated under a limit"),
        (FITS_BYTES, "echo cannot open $1 >&2; exit 1", "cannot open /dev/dri/renderD128"),
        (FITS_BYTES, "exit 0", "no allocation could be tried"),
    ],
)
def test_anything_less_is_no_proof(tree: CgroupTree, charged: int, script: str, why: str) -> None:
    """What was not charged, not refused or not tried is told as that."""
    assert why in (tried(tree, Dmem(charged), script) or "")


def test_a_limit_that_does_not_hold_is_no_proof(tree: CgroupTree) -> None:
    """A fault of the node is an answer, not an error."""

    class Refusing(Dmem):
        def limit(self, ref: CgroupRef, region: str, limit_bytes: int) -> None:
            raise OutsideFault("dmem.max", "was not taken")

    assert "was not taken" in (tried(tree, Refusing(), "echo held") or "")
    assert not (tree.mount / tree.instance[1:] / "selftest").exists()


@pytest.mark.skipif(Path("/dev/kfd").exists(), reason="there is a KFD here")
def test_the_kfd_probe_says_what_is_missing(tree: CgroupTree) -> None:
    """Without a KFD the built-in probe ends by itself, and the agent's process never opened one."""
    why = SelfTest(tree, Dmem(), KFD_PROBE).run(REGION, "/dev/dri/renderD128", 7)
    assert "/dev/kfd" in (why or "")
