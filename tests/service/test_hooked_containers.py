"""The hook in containers: how it gets into an image's programs, and when nothing is stated of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from service_builders import GIB, House, admin, order_of, user

from nodeagent.adapters.hook_files import HookFiles
from nodeagent.adapters.hook_format import usage_path
from nodeagent.domain.container import LIBRARY, LIMITS, PRELOAD, USAGE, Container, Engine
from nodeagent.domain.guarantee import Compute, Memory, Requirement
from nodeagent.domain.lease import Lease
from nodeagent.domain.refusals import Refusal
from nodeagent.domain.request import Request, SliceRequest

pytestmark = pytest.mark.root
Build = Callable[..., House]


@pytest.fixture
def house(build: Build, hook_files: HookFiles) -> House:
    return build(hook=hook_files)


def taken(house: House, libc: str) -> Lease:
    return house.grant(user(1000), container=Container(Engine.DOCKER, libc), cus=8, vram_bytes=GIB)


def targets(house: House, lease: Lease) -> dict[str, tuple[str, bool]]:
    """What is mounted where, and whether only to read."""
    view = house.agent.container(user(1000), lease)
    assert view is not None
    return {one["target"]: (one["source"], one["read_only"]) for one in view.mounts}


@pytest.mark.parametrize(
    ("libc", "by_file", "by_variable"),
    [("glibc-2.36", True, False), ("musl-1.2.5", False, True), ("unknown", True, True)],
)
def test_the_hook_is_mounted_for_the_images_loader(
    house: House, libc: str, by_file: bool, by_variable: bool
) -> None:
    """At fixed paths; only the usage can be written. glibc reads a file, whatever the environment."""
    lease = taken(house, libc)
    mounts = targets(house, lease)
    assert {LIMITS, USAGE, LIBRARY} <= mounts.keys()
    assert [target for target, (_, read_only) in mounts.items() if not read_only] == [USAGE]
    assert (PRELOAD in mounts) is by_file
    view = house.agent.container(user(1000), lease)
    assert view is not None
    assert (view.environment.get("LD_PRELOAD") == LIBRARY) is by_variable
    assert "GPULEASE_HOOK" not in view.environment
    assert usage_path(Path(mounts[LIMITS][0]).read_bytes()) == USAGE


@pytest.mark.parametrize(
    ("libc", "memory"),
    [
        ("glibc-2.36", Memory.HOOK),
        ("musl", Memory.HOOK),
        ("glibc-2.12", Memory.ADVISORY),
        ("static", Memory.ADVISORY),
        ("unknown", Memory.ADVISORY),
    ],
)
def test_what_is_stated_follows_the_image(house: House, libc: str, memory: Memory) -> None:
    """Nothing of a program that cannot load the hook, or of which nobody knows."""
    lease = taken(house, libc)
    assert lease.guarantee.memory is memory
    assert (lease.guarantee.compute is Compute.HOOK) is (memory is Memory.HOOK)
    house.release(lease)


@pytest.mark.parametrize("libc", ["static", "glibc-2.12", "unknown"])
def test_a_demanded_hook_that_no_image_loads_is_refused(house: House, libc: str) -> None:
    """Instead of a lease that states what does not hold."""
    request = Request((SliceRequest(cus=8),), require=Requirement(memory=Memory.HOOK))
    order = order_of(container=Container(Engine.DOCKER, libc), request=request)
    refusal = house.agent.grant(admin(), order)
    assert isinstance(refusal, Refusal)
    assert "hook: not of such a container" in refusal.why


def test_no_file_of_the_hook_outlives_the_lease(house: House, hook_files: HookFiles) -> None:
    """Nor the mount sources: so no engine starts the container again."""
    lease = taken(house, "glibc-2.36")
    sources = [source for target, (source, _) in targets(house, lease).items() if target != LIBRARY]
    assert all(Path(source).exists() for source in sources)
    house.release(lease)
    assert not [source for source in sources if Path(source).exists()]
    assert hook_files.leases() == frozenset()
