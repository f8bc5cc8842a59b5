"""A container's lease follows the container, with each engine: not its client, nor the engine's own life."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.slurm.agent import ServedAgent

from .host import Host
from .kinds import with_each_daemon

pytestmark = [pytest.mark.docker, pytest.mark.slow]
Image = Callable[[Host, str], str]
TAKE = ("--cu", "25%", "--vram", "8G")


def run(engine: Host, image: str, *words: str) -> Any:
    """The wrapper, detached, with a container called web that lives on."""
    client = engine.kind.client
    command = ("gpulease", client, "run", "--detach", "--network=none", "--name=web", *TAKE, *words, image)
    return engine.run(*command, "sleep", "1000")


@pytest.fixture
def lease(engine: Host, agent: ServedAgent, image: Image) -> dict[str, Any]:
    """The lease of a running container, once it is bound to it."""
    ran = run(engine, image(engine, "busybox"))
    assert ran.returncode == 0, ran.stderr

    def bound() -> Any:
        for one in agent.leases():
            shown = agent.call("GET", f"/v1/leases/{one['id']}")
            if shown["container"]["id"] and shown["anchor"]["armed"]:
                return shown
        return None

    return engine.until(bound)


def newest_event(agent: ServedAgent) -> int:
    """The id of the last event so far."""
    after = 0
    while (page := agent.call("GET", f"/v1/events?after={after}&limit=500"))["events"]:
        after = page["next"]
    return after


def state(agent: ServedAgent, lease: dict[str, Any]) -> str:
    return str(agent.call("GET", f"/v1/leases/{lease['id']}")["state"])


def ended(engine: Host, agent: ServedAgent, lease: dict[str, Any]) -> None:
    engine.until(lambda: state(agent, lease) == "released", 30)


def test_it_is_bound_to_the_container(engine: Host, lease: dict[str, Any]) -> None:
    """By its whole id, and is found by the container's name."""
    assert lease["container"]["id"] == engine.inspect("web")["Id"]
    assert f"lease {lease['id']}" in engine.run("gpulease", "show", "docker:web").stdout.lower()


@pytest.mark.parametrize("end", [("kill", "web"), ("rm", "--force", "web"), ("stop", "--time=0", "web")])
def test_it_ends_with_the_container(
    engine: Host, agent: ServedAgent, lease: dict[str, Any], end: tuple[str, ...]
) -> None:
    """However the container ends; and the container does not start again without it."""
    engine.said(*end)
    ended(engine, agent, lease)
    if "rm" not in end:
        assert engine.client("start", "web").returncode != 0


def test_its_end_stops_the_container(engine: Host, agent: ServedAgent, lease: dict[str, Any]) -> None:
    """By the engine, and what was mounted is gone with it."""
    agent.call("DELETE", f"/v1/leases/{lease['id']}?wait=5")
    ended(engine, agent, lease)
    assert not engine.inspect("web")["State"]["Running"]


def test_a_copied_label_gets_nothing(
    engine: Host, agent: ServedAgent, image: Image, lease: dict[str, Any]
) -> None:
    """Another user reads the ticket from the first container; the copy is told of, and let be."""
    labels = engine.inspect("web")["Config"]["Labels"]
    told = [f"--label={key}={value}" for key, value in labels.items() if key.startswith("gpulease.")]
    image_name, before = image(engine, "busybox"), newest_event(agent)
    engine.said("run", "--detach", "--network=none", "--name=copy", *told, image_name, "sleep", "1000")
    engine.until(lambda: "foreign_container" in str(agent.call("GET", f"/v1/events?after={before}")))
    engine.said("rm", "--force", "web")
    ended(engine, agent, lease)
    assert engine.inspect("copy")["State"]["Running"]


@with_each_daemon
def test_an_engine_that_dies_ends_no_lease_whose_container_lives(
    engine: Host, agent: ServedAgent, lease: dict[str, Any]
) -> None:
    """Its containers run on without it, and are the lease's still; their end is seen when it is back."""
    engine.stop_engine(signal.SIGKILL)
    assert state(agent, lease) == "active"
    engine.start_engine()
    engine.client("rm", "--force", "web")
    ended(engine, agent, lease)
