"""Real ROCm on the fake KFD: the releases to run it under, the programs, and nodes with an agent."""

from __future__ import annotations

import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fakekfd.fuse_kfd import usable
from tests.fakekfd.newer import newer_root

from .machine import HOOK, MASK, SUPERVISED, Bare, Leased, Node, Release, Tier, running_node

HERE = Path(__file__).parent
HEADER = Path("/usr/include/hip/hip_runtime_api.h")


@pytest.fixture(scope="session")
def fake_kernel() -> None:
    """Skips where there can be none."""
    if reason := usable():
        pytest.skip(reason)


@pytest.fixture(scope="session", params=["installed", "newer"])
def release(request: pytest.FixtureRequest, fake_kernel: None) -> Release:
    """Each of the releases."""
    if request.param == "installed":
        if shutil.which("rocminfo") is None:
            pytest.skip("needs the packages rocminfo and libamdhip64-5")
        return Release()
    root = newer_root()
    if root is None:
        pytest.skip("needs the newer ROCm's chroot, which make test-rocm makes")
    return Release(str(root))


@pytest.fixture
def rocm(release: Release, tmp_path: Path) -> Bare:
    """Each release without an agent."""
    return Bare(release, tmp_path / "report.json")


@pytest.fixture(scope="session")
def node_for(fake_kernel: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Node]]:
    """The node to test a tier on, started when it is needed first; skips where there is no such tier."""
    nodes: dict[tuple[str, str], Node] = {}
    with ExitStack() as stack:

        def node_for(tier: Tier, model: str = "mi210") -> Node:
            if reason := tier.unavailable():
                pytest.skip(reason)
            if (tier.settings, model) not in nodes:
                directory = tmp_path_factory.mktemp("node")
                nodes[tier.settings, model] = stack.enter_context(
                    running_node(directory, tier.settings, str(newer_root() or ""), model)
                )
            return nodes[tier.settings, model]

        yield node_for


@pytest.fixture(params=[HOOK, SUPERVISED], ids=lambda tier: tier.name)
def leased(request: pytest.FixtureRequest, release: Release, node_for: Callable[..., Node]) -> Leased:
    """Each release in leases of each tier that refuses memory without dmem."""
    return Leased(release, request.param, node_for(request.param))


@pytest.fixture
def hooked(release: Release, node_for: Callable[..., Node]) -> Leased:
    """Each release in leases that the hook holds."""
    return Leased(release, HOOK, node_for(HOOK))


@pytest.fixture
def supervised(release: Release, node_for: Callable[..., Node]) -> Leased:
    """Each release in leases that the supervisor holds, with nothing loaded into the program."""
    return Leased(release, SUPERVISED, node_for(SUPERVISED))


@pytest.fixture
def masked(release: Release, node_for: Callable[..., Node]) -> Leased:
    """Each release in leases that nothing but the environment holds."""
    return Leased(release, MASK, node_for(MASK))


@pytest.fixture(scope="session")
def public() -> Iterator[Path]:
    """A directory that every user and the chroot can reach; pytest closes its own at each start."""
    directory = Path("/tmp") / f"gpulease-test-{secrets.token_hex(6)}"
    directory.mkdir(mode=0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def program(public: Path) -> str:
    """program.c as an executable."""
    if not HEADER.exists() or shutil.which("gcc") is None:
        pytest.skip("needs gcc and the package libamdhip64-dev")
    made = public / "program"
    subprocess.run(["gcc", "-O1", "-o", made, HERE / "program.c", "-lamdhip64"], check=True)
    return str(made)
