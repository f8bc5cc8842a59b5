"""`gpulease docker run` is docker run: output, exit codes, signals and names are docker's own."""

from __future__ import annotations

import signal
import subprocess

import pytest

from .host import Host
from .kinds import with_each_daemon, with_each_engine
from .leased import Leased

pytestmark = pytest.mark.docker
# Ends at a signal with a code of its own.
TRAPS = ("sh", "-c", "trap 'exit 7' INT TERM; echo ready; while :; do sleep 0.1; done")


def test_a_container_in_the_foreground(leased: Leased) -> None:
    """Its output, its exit code and --rm are the engine's; the lease ends with it."""
    done = leased.run(("sh", "-c", "echo out; echo err >&2; cat; exit 3"), "--interactive", input="in\n")
    assert (done.returncode, done.stdout) == (3, "out\nin\n"), done.stderr
    assert "err\n" in done.stderr
    assert leased.host.containers() == []
    leased.host.until(lambda: not leased.agent.leftovers())


@with_each_engine
def test_a_container_in_the_background(leased: Leased) -> None:
    """-d prints the id alone; the lease is that container's, and ends when it is stopped."""
    container = leased.start("--name=kept")
    leased.bound(container)
    leased.host.said("stop", "--time=1", "kept")
    leased.released(container)


def test_the_image_is_not_there(leased: Leased) -> None:
    """What the engine refuses is its own refusal, and leaves no lease."""
    client = leased.host.kind.client
    words = ("gpulease", client, "run", "--vram", "4G", "--network=none", "--pull=never", "nothing:here")
    done = leased.host.run(*words, "true")
    assert done.returncode == 125
    leased.host.until(lambda: not leased.agent.leftovers())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_signals_reach_the_container(leased: Leased, number: signal.Signals) -> None:
    """A signal to the client is the container's, whose exit code is the client's."""
    words = leased.words("--rm")
    client = leased.host.start(*words, *TRAPS, stdout=subprocess.PIPE)
    with client:
        assert client.stdout
        assert client.stdout.readline() == "ready\n"
        container = leased.running()
        leased.signal_client(client, number)
    assert client.returncode == 7
    leased.released(container)


@with_each_daemon
def test_a_user_of_the_docker_group(leased: Leased) -> None:
    """Who may use docker may take a lease for a container; it is that user's."""
    container = leased.start(user="alice")
    holder = leased.agent.call("GET", f"/v1/leases/{container.lease}")["holder"]
    assert holder["uid"] == leased.host.users["alice"]
    leased.host.said("kill", container.id, user="alice")
    leased.released(container)


def test_two_on_one_device(leased: Leased) -> None:
    """Two containers share a GPU; one's end leaves the other as it is."""
    device = leased.agent.call("GET", "/v1/devices")["devices"][0]["device"]
    ended, kept = (leased.start(f"--lease-device={device}") for _ in range(2))
    leased.bound(kept)
    leased.host.said("kill", ended.id)
    leased.released(ended)
    assert leased.state(kept) == "active"
    assert leased.host.inspect(kept.id)["State"]["Running"]
    leased.host.said("kill", kept.id)
    leased.released(kept)


def test_the_devices_of_the_lease_alone(leased: Leased) -> None:
    """Inside there is /dev/kfd and one render node, which the groups of the process open."""
    show = "ls /dev/dri; ls /dev/kfd; id -G"
    done = leased.run(("sh", "-c", show))
    first, kfd, groups = done.stdout.splitlines()
    assert first.startswith("renderD"), done.stdout + done.stderr
    assert kfd == "/dev/kfd"
    assert "109" in groups.split()


def test_a_dry_run_takes_nothing(engine: Host) -> None:
    """--dry-run prints a command line and asks nobody."""
    words = ("run", "--dry-run", "--vram", "4G", "busybox", "true")
    done = engine.run("gpulease", engine.kind.client, *words)
    assert done.stdout.startswith(f"{engine.kind.client} run "), done.stderr
    assert engine.containers() == []
