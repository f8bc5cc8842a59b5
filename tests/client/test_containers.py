"""`gpulease docker run`: from the command line to the engine's client, with a lease or with none left."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from .engine import FakeEngine

SHARE = ("--vram", "1G")
ADDED = [
    "--cgroup-parent=gpulease-1001.slice",
    "--device=/dev/kfd",
    "--device=/dev/dri/renderD128",
    "--group-add=44",
    "--group-add=109",
    '--mount=type=bind,"source=/run/nodeagent/a,b/limits",target=/etc/gpulease/limits,readonly',
    "--mount=type=bind,source=/run/nodeagent/hook/usage,target=/run/gpulease/usage",
    "--env=ROCR_VISIBLE_DEVICES=0",
    "--env=HSA_CU_MASK=0:0-75",
    "--env=HIP_VISIBLE_DEVICES",
    "--init",
    f"--label-file: gpulease.lease=1001\ngpulease.ticket={'ab' * 16}\n",
    "--stop-timeout=70",
]


def test_container_in_its_lease(agent: Any, engine: FakeEngine, run: Any) -> None:
    """The engine's client takes our place: the user's words in their order, and the lease's behind them."""
    done = run("docker", "run", "-it", *SHARE, "--rm", "-e", "A=1", "img", "sh", "-c", "x y", "--vram", "z")
    assert (done.returncode, done.stdout) == (0, "started\n")
    assert engine.last()["words"] == (
        ["run", "-it", "--rm", "-e", "A=1", *ADDED, "img", "sh", "-c", "x y", "--vram", "z"]
    )
    assert done.stderr == (
        "gpulease: lease 1001: memory advisory, compute mask, visibility environment; image glibc 2.36\n"
    )
    assert agent.leases[1001]["state"] == "active"  # the container's now


def test_request(agent: Any, run: Any) -> None:
    """Holder is this process, the anchor a container of the engine's with what is known of its image."""
    options = ("--lease-gpus=2", "--queues", "3", "--lease-not-type", "a,b", "--require", "memory=hook")
    run("docker", "create", *SHARE, *options, "--wait=30s", "--lease-restart", "--restart=always", "img")
    (body,) = agent.called("POST", "/v1/leases$")
    assert body.pop("request_id")
    assert body == {
        "holder": {"kind": "process"},
        "anchor": {
            "kind": "container",
            "engine": "docker",
            "libc": "glibc-2.36",
            "restarts": True,
            "start_seconds": 600,
        },
        "slices": [{"vram_bytes": 1 << 30, "count": 2, "queue_slots": 3, "not_type": ["a", "b"]}],
        "require": {"memory": "hook"},
        "wait_seconds": 30,
    }


def test_create_starts_within(agent: Any, run: Any) -> None:
    """A container that is only made has the user's time to start; one of `run` has no such option."""
    run("docker", "create", *SHARE, "--lease-start-within=2h", "img")
    assert agent.called("POST", "/v1/leases$")[0]["anchor"]["start_seconds"] == 7200
    assert run("docker", "run", *SHARE, "--lease-start-within=2h", "img").returncode == 125


@pytest.mark.parametrize("code", [0, 3, 125, 137])
def test_exit_code(engine: FakeEngine, run: Any, code: int) -> None:
    """The exit code is the engine's own."""
    engine.keep("exit", code)
    assert run("docker", "run", *SHARE, "img").returncode == code


def test_same_process(agent: Any, engine: FakeEngine, gpulease: Any) -> None:
    """The client is the process that took the lease: the agent knows it by its pid."""
    process = gpulease.start("docker", "run", *SHARE, "img", env=engine.environment)
    process.communicate()
    assert process.returncode == 0
    assert agent.called("POST", "/v1/leases$")[0]["holder"] == {"kind": "process"}


def test_words_before_the_command(engine: FakeEngine, run: Any) -> None:
    """Options of the program's own go to every call of it."""
    done = run("docker", "--log-level=debug", "container", "run", *SHARE, "img")
    assert done.returncode == 0
    assert engine.words()[0][:2] == ["--log-level=debug", "create"]
    assert engine.last()["words"][:3] == ["--log-level=debug", "container", "run"]


def test_podman_unsets_by_an_option_of_its_own(engine: FakeEngine, run: Any) -> None:
    """podman keeps the image's variable where only a name is given: it has an option to take it out."""
    assert run("podman", "run", *SHARE, "img").returncode == 0
    assert "--unsetenv=HIP_VISIBLE_DEVICES" in engine.last()["words"]
    assert "--env=HIP_VISIBLE_DEVICES" not in engine.last()["words"]


def test_nerdctl_cannot_unset(agent: Any, engine: FakeEngine, run: Any) -> None:
    """nerdctl has no way to take a variable out of an image's: an image that has one is refused."""
    assert run("nerdctl", "run", *SHARE, "img").returncode == 0
    assert not [word for word in engine.last()["words"] if "HIP_VISIBLE" in word]
    engine.image("other", Env=["HIP_VISIBLE_DEVICES=1"])
    done = run("nerdctl", "run", *SHARE, "other")
    assert (done.returncode, agent.leases[1002]["state"]) == (125, "released")
    assert "the image sets HIP_VISIBLE_DEVICES" in done.stderr


def test_nothing_of_a_job_leaks(engine: FakeEngine, run: Any) -> None:
    """What a job's environment has does not get into the container, not even by a name alone."""
    job = {"HIP_VISIBLE_DEVICES": "7", "ROCR_VISIBLE_DEVICES": "5", "HSA_CU_MASK": "0:1", "SLURM_JOB_ID": "9"}
    assert run("docker", "run", *SHARE, "img", env=job).returncode == 0
    call = engine.last()
    assert "HIP_VISIBLE_DEVICES" not in call["environment"]  # docker would take its value for the name
    assert not [word for word in call["words"] if "SLURM" in word or word.endswith(("=7", "=5", "=0:1"))]


def test_the_users_library_stays_loaded(agent: Any, engine: FakeEngine, run: Any) -> None:
    """Where the lease has a library loaded into all programs, the user's or the image's comes behind it."""
    agent.container["environment"] = {"LD_PRELOAD": "/usr/lib/gpulease/hook.so"}
    engine.image("img", Env=["LD_PRELOAD=/image.so"])
    run("docker", "run", *SHARE, "img")
    assert "--env=LD_PRELOAD=/usr/lib/gpulease/hook.so:/image.so" in engine.last()["words"]
    run("docker", "run", *SHARE, "-e", "LD_PRELOAD=/mine.so", "img")
    assert "--env=LD_PRELOAD=/usr/lib/gpulease/hook.so:/mine.so" in engine.last()["words"]


def test_other_requests_of_an_image_are_taken_out(engine: FakeEngine, run: Any) -> None:
    """An image that asks AMD's runtime for GPUs asks nobody any more."""
    engine.image("img", Env=["AMD_VISIBLE_DEVICES=all", "DOCKER_RESOURCE_GPU=0", "A=1"])
    run("docker", "run", *SHARE, "img")
    words = engine.last()["words"]
    assert "--env=AMD_VISIBLE_DEVICES" in words and "--env=DOCKER_RESOURCE_GPU" in words
    assert "--env=A" not in words


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ([], ["--stop-timeout=70"]),
        (["--stop-timeout", "70"], []),
        (["--stop-timeout=100"], []),
        (["--stop-timeout", "-1"], []),
        (["--stop-timeout", "5"], ["--stop-timeout=70"]),
        (["--stop-timeout", "x"], []),
    ],
)
def test_stop_timeout(engine: FakeEngine, run: Any, given: list[str], added: list[str]) -> None:
    """A container gets the lease's time to stop; a longer one of the user's stays, a shorter is raised."""
    done = run("docker", "run", *SHARE, *given, "img")
    words = [word for word in engine.last()["words"] if word.startswith("--stop-timeout=")]
    assert words == [word for word in given if "=" in word] + added
    assert ("is raised to 70" in done.stderr) == bool(given and added)


@pytest.mark.parametrize("given", [["--init"], ["--init=false"], ["--pid=container:a"]])
def test_init_of_the_users(engine: FakeEngine, run: Any, given: list[str]) -> None:
    """Whether there is an init is the user's to say; there is none where it would not be the first."""
    run("docker", "run", *SHARE, *given, "img")
    assert [word for word in engine.last()["words"] if word.startswith("--init")] == (
        given if given[0].startswith("--init") else []
    )


def test_devices_of_another_name(agent: Any, engine: FakeEngine, run: Any) -> None:
    """A node that lies elsewhere on the host is where programs look for it inside."""
    agent.container["devices"] = [{"host": "/root/dev/kfd", "inside": "/dev/kfd"}]
    agent.container["cgroup_parent"] = None
    run("docker", "run", *SHARE, "img")
    assert "--device=/root/dev/kfd:/dev/kfd" in engine.last()["words"]
    assert not [word for word in engine.last()["words"] if "cgroup-parent" in word]


def test_seccomp_profile(agent: Any, run: Any) -> None:
    """A profile of the lease's is there for the engine to read, and nowhere on disk."""
    agent.container["seccomp"] = {"defaultAction": "SCMP_ACT_ALLOW"}
    assert run("docker", "run", *SHARE, "img").stdout == '{"defaultAction": "SCMP_ACT_ALLOW"}\n'
    done = run("docker", "run", *SHARE, "--security-opt", "seccomp=unconfined", "img")
    assert (done.returncode, agent.leases[1002]["state"]) == (125, "released")


def test_json(run: Any) -> None:
    """--json before the engine shows the lease on stderr: stdout is the container's."""
    done = run("--json", "docker", "run", *SHARE, "img")
    assert (done.stdout, '"id": 1001' in done.stderr) == ("started\n", True)


def test_whole_device_is_said(run: Any) -> None:
    """A run that names no part of a device says that it takes all of it."""
    assert "whole device, exclusively" in run("docker", "run", "img").stderr


def test_refused(agent: Any, engine: FakeEngine, run: Any, refusal: Any) -> None:
    """A refusal is 125 with its reason on the last line, and there is no container."""
    agent.canned_grant = (409, refusal, {})
    done = run("docker", "run", *SHARE, "img")
    assert done.returncode == 125
    assert done.stderr.splitlines()[-1].startswith("gpulease: NodeInsufficientDevice: ")
    assert not [words for words in engine.words() if words[0] == "run"]


def test_client_that_is_not_there(agent: Any, engine: FakeEngine, run: Any) -> None:
    """A client that cannot be started leaves no lease."""
    run("docker", "run", *SHARE, "img")  # so that the image is known
    (engine.directory / "docker").unlink()
    done = run("docker", "run", *SHARE, "img", env={"PATH": str(engine.directory)})
    assert (done.returncode, agent.leases[1002]["state"]) == (125, "released")
    assert done.stderr.splitlines()[-1].startswith("gpulease: CommandNotFound: docker: ")


def test_agent_that_knows_no_containers(agent: Any, run: Any) -> None:
    """An agent that gives nothing for a container leaves no lease, and no container outside of one."""
    lease = agent.add_lease(request_id="x")
    agent.canned = [(201, lease, {})]
    done = run("docker", "run", *SHARE, "img")
    assert (done.returncode, lease["state"]) == (125, "released")
    assert "EngineFailed: the agent says nothing of a container" in done.stderr


def test_node_that_only_observes(agent: Any, run: Any) -> None:
    """It says so, and what to do: there is no GPU in such a lease to put into a container."""
    lease = agent.add_lease(request_id="x", slices=[])
    agent.canned = [(201, lease, {})]
    done = run("docker", "run", *SHARE, "img")
    assert (done.returncode, lease["state"]) == (125, "released")
    said = "EngineFailed: the node only observes requests of this kind as yet, and lease 1001 holds no GPU"
    assert said in done.stderr


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signal_while_queued(
    agent: Any, engine: FakeEngine, gpulease: Any, until: Callable[..., Any], name: str
) -> None:
    """A signal before there is a container gives the lease back and is 125."""
    lease = agent.add_lease(state="preparing", request_id="x")
    agent.canned = [(202, lease, {})]
    process = gpulease.start("docker", "run", *SHARE, "--wait=1m", "img", env=engine.environment)
    until(lambda: agent.called("GET", "/v1/leases/1001"))
    process.send_signal(getattr(signal, name))
    _, err = process.communicate()
    assert process.returncode == 125
    assert err.splitlines()[-1] == f"gpulease: Interrupted: {name} before the container was made"
    assert lease["state"] == "released"


def test_dry_run(agent: Any, engine: FakeEngine, run: Any) -> None:
    """A dry run prints the command line that a shell reads back, and asks neither agent nor engine."""
    odd = ("a b", "it's", "new\nline", "ü", "")
    done = run("docker", "run", "--dry-run", *SHARE, "-it", "img", *odd)
    assert (done.returncode, agent.requests, engine.calls()) == (0, [], [])
    assert done.stdout.count("\n") == 1 and done.stdout.isascii()
    line = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {done.stdout}"], capture_output=True, text=True
    ).stdout
    words = line.split("\0")[:-1]
    assert (words[:3], tuple(words[-6:])) == (["docker", "run", "-it"], ("img", *odd))


def test_help(run: Any) -> None:
    """Help before the image is ours, and behind it the container's."""
    assert "--lease-gpus" in run("docker", "run", "--help").stdout
    assert "--lease-gpus" in run("docker", "--help").stdout
    assert run("docker", "run", *SHARE, "img", "--help").stdout == "started\n"
