"""Real ROCm on the fake KFD: the program, the ROCm releases to run it under, and nodes with an agent."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.fakekfd.fuse_kfd import usable

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CHROOT = ROOT / "tests/fakekfd/chroot"
HEADER = Path("/usr/include/hip/hip_runtime_api.h")
SECONDS = 60
VRAM_FLAG = 1


@dataclass(frozen=True)
class Ran:
    """What a program printed, line by line, and the fake kernel's state after its end."""

    code: int
    lines: list[str]
    errors: str
    state: dict[str, Any]

    def logged(self, what: str) -> list[dict[str, Any]]:
        """What reached the kernel, of one kind: alloc, svm, queue or mask."""
        return [entry for entry in self.state["log"] if entry["what"] == what]

    def vram(self, size: int) -> list[int]:
        """The codes that the kernel gave to each allocation of *size* bytes of VRAM."""
        return [e["code"] for e in self.logged("alloc") if e["flags"] & VRAM_FLAG and e["size"] == size]

    def masks(self) -> dict[int, str]:
        """The mask that each queue ended with; "" for none."""
        found = {entry["queue_id"]: "" for entry in self.logged("queue")}
        for entry in self.logged("mask"):
            if entry["code"] == 0:
                found[entry["queue_id"]] = entry["mask"]
        return found


Fake = Callable[..., Ran]


def newer_rocm() -> Path | None:
    """The chroot with the newer release, if somebody made it (make test-rocm does)."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    root = Path(os.environ.get("NODEAGENT_CACHE") or Path(cache) / "nodeagent") / "rocm-chroot"
    return root if (root / ".nodeagent-chroot").exists() else None


@pytest.fixture(scope="session")
def fake_kernel() -> None:
    """Skips where there can be none."""
    if reason := usable():
        pytest.skip(reason)


@pytest.fixture(scope="session", params=["installed", "newer"])
def release(request: pytest.FixtureRequest, fake_kernel: None) -> list[str]:
    """Arguments of the fake that choose a ROCm release."""
    if request.param == "installed":
        if shutil.which("rocminfo") is None:
            pytest.skip("needs the packages rocminfo and libamdhip64-5")
        return []
    root = newer_rocm()
    if root is None:
        pytest.skip("needs the newer ROCm's chroot, which make test-rocm makes")
    return ["--root", str(root)]


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """program.c as an executable, which every user and the chroot can reach."""
    if not HEADER.exists() or shutil.which("gcc") is None:
        pytest.skip("needs gcc and the package libamdhip64-dev")
    directory = tmp_path_factory.mktemp("hip")
    for above in (directory, *directory.parents[:3]):
        if above.is_relative_to("/tmp") and above != Path("/tmp"):
            above.chmod(0o755)
    made = directory / "program"
    subprocess.run(["gcc", "-O1", "-o", made, HERE / "program.c", "-lamdhip64"], check=True)
    yield str(made)


@pytest.fixture
def fake(tmp_path: Path, fake_kernel: None) -> Fake:
    """Run a command on a machine of the fake's."""

    def run(*command: str, options: list[str] | None = None, **environment: str) -> Ran:
        report = tmp_path / "report.json"
        words = [
            sys.executable,
            "-m",
            "tests.fakekfd",
            *(options or []),
            "--report",
            str(report),
            "--",
            *command,
        ]
        done = subprocess.run(
            words,
            cwd=ROOT,
            env={**os.environ, **environment},
            text=True,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
        assert report.exists(), done.stderr
        return Ran(done.returncode, done.stdout.splitlines(), done.stderr, json.loads(report.read_text()))

    return run
