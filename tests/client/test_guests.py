"""`gpulease docker run` from within a lease: the container shares that lease, which is not ours to end."""

from __future__ import annotations

from typing import Any

import pytest

from .engine import FakeEngine


@pytest.fixture(autouse=True)
def job(agent: Any) -> dict[str, Any]:
    """The lease that this runs in, by the agent's word."""
    lease: dict[str, Any] = agent.add_lease(request_id="x", anchor={"kind": "external"})
    said = "this process is in lease 1001 of slurm:42"
    agent.canned_grant = (403, {"code": "InLease", "status": 403, "detail": said, "lease": 1001}, {})
    return lease


def given_back(agent: Any) -> int:
    return len(agent.called("DELETE", "/v1/leases/1001/containers/3$"))


def test_a_guest_is_started(agent: Any, engine: FakeEngine, run: Any) -> None:
    """By the same command line, with the lease's placement; the image, floor and request id go along."""
    done = run("docker", "run", "--require", "memory=hook", "img", "sh")
    assert (done.returncode, done.stdout) == (0, "started\n")
    assert "--cgroup-parent=gpulease-1001.slice" in engine.last()["words"]
    assert done.stderr.startswith("gpulease: lease 1001, which this runs in: memory hook, compute hook")
    (body,) = agent.called("POST", "/v1/leases/1001/containers$")
    assert body.pop("request_id")
    anchor = {"kind": "container", "engine": "docker", "libc": "glibc-2.36"}
    assert body == {"anchor": anchor, "require": {"memory": "hook"}}
    assert given_back(agent) == 0


@pytest.mark.parametrize("option", [("--vram", "1G"), ("--cu=25%",), ("--lease-gpus=2",), ("--ttl", "5m")])
def test_what_only_a_lease_of_its_own_could_have_is_refused(
    agent: Any, engine: FakeEngine, run: Any, option: tuple[str, ...]
) -> None:
    """By the option's name, before anything is asked for."""
    done = run("docker", "run", *option, "img")
    assert done.returncode == 125
    assert done.stderr.splitlines()[-1].startswith(f"gpulease: BreaksFence: {option[0].partition('=')[0]}: ")
    assert agent.called("POST", "/v1/leases/1001/containers$") == []
    assert not [words for words in engine.words() if words[0] == "run"]


@pytest.mark.parametrize("verb", ["run", "create"])
def test_a_client_that_is_not_there_ends_the_guest_alone(
    agent: Any, engine: FakeEngine, run: Any, job: dict[str, Any], verb: str
) -> None:
    """The job's lease goes on, whatever becomes of a container in it."""
    run("docker", "run", "img")  # so that the image is known
    (engine.directory / "docker").unlink()
    done = run("docker", verb, "img", env={"PATH": str(engine.directory)})
    assert (done.returncode, given_back(agent), job["state"]) == (125, 1, "active")


@pytest.mark.parametrize(("code", "back"), [(0, 0), (125, 1), (1, 1)])
def test_a_container_that_could_not_be_made_is_given_up(
    agent: Any, engine: FakeEngine, run: Any, job: dict[str, Any], code: int, back: int
) -> None:
    """Nothing waits for it; the exit code is the engine's."""
    engine.keep("exit", code)
    assert run("docker", "create", "img").returncode == code
    assert (given_back(agent), job["state"]) == (back, "active")


def test_a_lease_of_a_container_that_could_not_be_made_is_released(
    agent: Any, engine: FakeEngine, run: Any
) -> None:
    """Outside of leases the same gives back the lease, and one that was made keeps it."""
    agent.canned_grant = None
    for code, state in ((125, "released"), (0, "active")):
        engine.keep("exit", code)
        assert run("docker", "create", "--vram=1G", "img").returncode == code
        assert agent.leases[max(agent.leases)]["state"] == state


def test_a_signal_leaves_no_guest(agent: Any, run: Any, job: dict[str, Any]) -> None:
    """Also one that comes before the answer: the same request finds what that gave."""
    agent.interrupts = True
    done = run("docker", "run", "img")
    assert done.returncode == 125
    assert done.stderr.splitlines()[-1] == "gpulease: Interrupted: SIGTERM before the container was made"
    first, again = agent.called("POST", "/v1/leases/1001/containers$")
    assert first == again
    assert (given_back(agent), job["state"]) == (1, "active")


def test_show_lists_the_containers_in_a_lease(agent: Any, gpulease: Any) -> None:
    """Those that were started from within it; none of a lease that has none, and is not asked for."""
    assert "inside" not in gpulease("show", "1001").stdout
    running = {"id": 3, "engine": "docker", "container": "c0ffee" * 8, "state": "running", "reason": None}
    ending = {"id": 4, "engine": "podman", "container": None, "state": "ending", "reason": "given back"}
    agent.inside = [running, ending]
    shown = gpulease("show", "1001").stdout
    assert "  inside    docker c0ffeec0ffeec0ff: running\n" in shown
    assert "  inside    podman not started yet: ending (given back)\n" in shown
    agent.canned = [(200, agent.leases[1001], {}), (404, {"code": "UnknownThing"}, {})]  # an older agent
    assert gpulease("show", "1001").returncode == 0
