"""Whose engine it is, and where: a lease is of this node, and of what can be put into it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import of_the_client
from .elf import program
from .engine import FakeEngine

SHARE = ("--vram", "1G")


@pytest.mark.parametrize(
    ("words", "environment"),
    [
        (["-H", "tcp://10.0.0.1:2375"], {}),
        (["--host=ssh://other"], {}),
        ([], {"DOCKER_HOST": "tcp://127.0.0.1:2375"}),
        (["--context=far"], {}),
        ([], {"DOCKER_HOST": "", "DOCKER_CONTEXT": "far"}),
        ([], {"DOCKER_HOST": "", "DOCKER_CONFIG": "CONFIGURED"}),
    ],
)
def test_docker_of_another_machine(
    agent: Any, engine: FakeEngine, run: Any, tmp_path: Path, words: list[str], environment: dict[str, str]
) -> None:
    """A docker that is not behind a socket of this node's is refused before there is a lease."""
    config = tmp_path / "config"
    meta = config / "contexts/meta" / hashlib.sha256(b"far").hexdigest()
    meta.mkdir(parents=True)
    (meta / "meta.json").write_text(json.dumps({"Endpoints": {"docker": {"Host": "tcp://far:2376"}}}))
    (config / "config.json").write_text(
        json.dumps({"currentContext": "far"} if "CONFIGURED" in environment.values() else {})
    )
    environment = {"DOCKER_CONFIG": str(config), **environment}
    environment["DOCKER_CONFIG"] = environment["DOCKER_CONFIG"].replace("CONFIGURED", str(config))
    done = run("docker", *words, "run", *SHARE, "img", env=environment)
    assert (done.returncode, agent.requests) == (125, [])
    assert "BreaksFence: docker at " in done.stderr and "this node" in done.stderr


def test_dockers_own_choice(engine: FakeEngine, run: Any) -> None:
    """-H counts before all else, and an unknown context is an error."""
    socket = engine.environment["DOCKER_HOST"]
    assert (
        run("docker", "-H", socket, "run", *SHARE, "img", env={"DOCKER_HOST": "tcp://far:1"}).returncode == 0
    )
    done = run("docker", "--context=nowhere", "run", *SHARE, "img")
    assert (done.returncode, "has no context nowhere" in done.stderr) == (125, True)


@pytest.mark.parametrize(
    ("option", "words", "refused"),
    [
        ("name=rootless", [], True),
        ("name=userns", [], True),
        ("name=userns", ["--userns=host"], False),
        ("name=seccomp,profile=default", [], False),
    ],
)
def test_what_docker_says_of_itself(
    agent: Any, engine: FakeEngine, run: Any, option: str, words: list[str], refused: bool
) -> None:
    """A rootless docker cannot use the lease's cgroup, and one that maps users not the GPU's groups."""
    engine.keep("info", {"SecurityOptions": [option]})
    done = run("docker", "run", *SHARE, *words, "img")
    assert (done.returncode, len(agent.called("POST"))) == ((125, 0) if refused else (0, 1))
    assert ("BreaksFence" in done.stderr) == refused


def test_docker_that_does_not_answer(agent: Any, engine: FakeEngine, run: Any) -> None:
    """Without a daemon there is no lease; the daemon's own word is passed on."""
    engine.keep("info", [])
    done = run("docker", "run", *SHARE, "img")
    assert (done.returncode, agent.requests) == (125, [])
    assert "EngineFailed: docker at " in done.stderr


@pytest.mark.parametrize("words", [["--remote"], ["-r"], ["--url=ssh://x"], ["--connection", "x"]])
def test_podman_of_another_machine(agent: Any, run: Any, words: list[str]) -> None:
    """podman's remote service is refused, by option and by environment."""
    assert run("podman", *words, "run", *SHARE, "img").returncode == 125
    done = run("podman", "run", *SHARE, "img", env={"CONTAINER_HOST": "ssh://x"})
    assert (done.returncode, agent.requests) == (125, [])
    assert "podman would run elsewhere" in done.stderr


@pytest.mark.parametrize("words", [["--userns=auto"], ["--uidmap=0:1:2"], ["--subuidname", "x"]])
def test_user_namespaces_of_root(agent: Any, run: Any, words: list[str]) -> None:
    """A user namespace of root's engine is refused: there the GPU's nodes have no group."""
    for options, environment in ((words, {}), ([], {"PODMAN_USERNS": "auto"})):
        done = run("podman", "run", *SHARE, *options, "img", env=environment)
        assert (done.returncode, agent.requests) == (125, [])
        assert "user namespace" in done.stderr


# podman without root: root of a user namespace of ours


@pytest.fixture
def mapped(agent: Any, engine: FakeEngine) -> Any:
    """`gpulease podman run` as no root of the machine's."""
    words = ["unshare", "--user", "--map-root-user", "--"]
    if subprocess.run([*words, "true"], check=False, capture_output=True).returncode:
        pytest.skip("needs user namespaces")
    environment = {**engine.environment, **of_the_client(), "GPULEASE_SOCKET": agent.path}
    agent.environment = {
        "ROCR_VISIBLE_DEVICES": "0",
        "HIP_VISIBLE_DEVICES": None,
        "LD_PRELOAD": "/opt/hook.so",
        "GPULEASE_HOOK": "/run/nodeagent/hook/gpulease/1001/limits",
    }

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gpulease", "podman", "run", *SHARE, *options, "img"]
        return subprocess.run(
            [*words, *command], env=environment, capture_output=True, text=True, check=False
        )

    return run


@pytest.mark.userns
def test_podman_without_root(agent: Any, engine: FakeEngine, mapped: Any) -> None:
    """We go into the lease ourselves, and podman starts the container where we are, with the hook."""
    done = mapped("--userns=keep-id")
    assert done.returncode == 0, done.stderr
    (body,) = agent.called("POST", "/v1/leases$")
    assert body["anchor"] == {"kind": "cgroup"}
    assert len(agent.attached) == 1
    assert engine.last()["words"] == [
        *(
            "run",
            "--userns=keep-id",
            "--cgroups=disabled",
            "--device=/dev/kfd",
            "--device=/dev/dri/renderD128",
        ),
        "--mount=type=bind,source=/opt/hook.so,target=/opt/hook.so,readonly",
        "--mount=type=bind,source=/run/nodeagent/hook,target=/run/nodeagent/hook",
        *("--env=ROCR_VISIBLE_DEVICES=0", "--unsetenv=HIP_VISIBLE_DEVICES", "--env=LD_PRELOAD=/opt/hook.so"),
        "--env=GPULEASE_HOOK=/run/nodeagent/hook/gpulease/1001/limits",
        "--env=GPULEASE_ID=1001",
        *[word for word in engine.last()["words"] if word == "--init"],
        *("--label=gpulease.lease=1001", "img"),
    ]


@pytest.mark.userns
def test_what_the_hook_cannot_hold(agent: Any, engine: FakeEngine, mapped: Any) -> None:
    """Of a static program it is said that no hook holds it; where one is demanded, it is refused."""
    engine.write("bin/prog", program(None))
    assert "note: the image's program may not load the hook (static)" in mapped().stderr
    done = mapped("--require=memory=hook")
    assert (done.returncode, len(agent.leases)) == (125, 1)
    assert done.stderr.splitlines()[-1].startswith("gpulease: ImageUnfit: ")
