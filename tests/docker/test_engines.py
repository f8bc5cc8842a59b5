"""The engines themselves, as these tests start them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .host import Host
from .kinds import with_each_engine

pytestmark = [pytest.mark.docker, with_each_engine]


@pytest.mark.parametrize("name", ["busybox", "glibc"])
def test_a_container_runs(engine: Host, image: Callable[..., str], name: str) -> None:
    """A container without a network runs and its exit code is the command's."""
    words = ("run", "--rm", "--network=none", image(engine, name), "sh", "-c", "echo here; exit 3")
    done = engine.client(*words)
    assert (done.returncode, done.stdout) == (3, "here\n"), done.stderr + engine.log()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["musl", "static", "old"])
def test_images_of_other_libraries_run(engine: Host, image: Callable[..., str], name: str) -> None:
    """Programs of musl, of an old glibc and of none start in their images."""
    done = engine.client("run", "--rm", "--network=none", image(engine, name), "/bin/take", "1")
    assert done.stdout == "/dev/kfd cannot be opened\n", done.stderr + engine.log()


def test_the_agent_grants_beside_it(engine: Host, agent) -> None:
    """The agent of the host is ready, and its users reach it and the engine."""
    done = engine.run("gpulease", "status", user="alice")
    assert done.returncode == 0, done.stderr
    if engine.kind.client == "docker":
        assert engine.client("ps", user="alice").returncode == 0
