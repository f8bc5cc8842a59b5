"""Containers on a real dmem controller: the kernel holds each to its lease's limit, and all of them end."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable

import pytest

from tests.rig.conftest import fake_gpus
from tests.rig.docker.conftest import (
    PATIENT,
    TAKE,
    Container,
    Engine,
    bound,
    cgroup,
    lease,
    lease_options,
    released,
    said,
    until,
)
from tests.rig.wired import limit

pytestmark = pytest.mark.rig
MIB = 1 << 20
HOLDING = ("sh", "-c", f"{TAKE}\nsleep 600", "sh", "alloc 512M")

ENDS = {
    "kill": lambda engine, container: said(engine.client, "kill", container.id),
    "rm --force": lambda engine, container: said(engine.client, "rm", "--force", container.id),
}


def current(container: Container) -> int:
    """Bytes of the first GPU that the lease's cgroup is charged for."""
    region = fake_gpus()[0].region
    lines = dict(line.split() for line in (cgroup(container) / "dmem.current").read_text().splitlines())
    return int(lines.get(region, 0))


def holding(engine: Engine) -> Container:
    """A container that holds half of its GiB."""
    container = engine.start(*HOLDING)
    bound(container)
    until(lambda: said(engine.client, "logs", container.id) == "ok")
    assert current(container) == 512 * MIB
    return container


@pytest.mark.way_out(
    "two containers on one GPU, `docker exec` and `docker exec env -i`: static programs",
    tier="kernel",
    outcome="refused over the limit; the neighbour keeps what it has",
)
def test_two_containers_share_a_gpu(engine: Engine) -> None:
    """Each is held to its own limit by the kernel, exec included; the neighbour is untouched."""
    one, other = holding(engine), holding(engine)
    slices = [lease(container)["slices"][0] for container in (one, other)]
    assert slices[0]["device"] == slices[1]["device"]
    assert [lease(container)["guarantee"]["memory"] for container in (one, other)] == ["kernel", "kernel"]
    assert limit(cgroup(one), fake_gpus()[0].region) == str(slices[0]["vram_bytes"])
    for before in ((), ("env", "-i")):
        assert engine.take(one, "alloc 384M", "alloc 384M", before=before) == ["ok", "refused"]
    assert current(one) == 512 * MIB
    assert current(other) == 512 * MIB
    assert engine.take(other, "alloc 384M") == ["ok"]


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_an_end_is_a_proved_release(engine: Engine, end: Callable[..., object]) -> None:
    """With what it held given back, and its neighbour as it was."""
    container, neighbour = holding(engine), holding(engine)
    end(engine, container)
    released(container)
    assert lease(neighbour)["state"] == "active"
    assert current(neighbour) == 512 * MIB


def test_the_daemon_is_restarted(docker: Engine) -> None:
    """It ends its containers; their leases end with them."""
    container = holding(docker)
    said("systemctl", "restart", "docker.service")
    released(container)
    assert not docker.running(container)


def test_the_wrapper_is_killed(docker: Engine) -> None:
    """SIGKILL to the client ends nothing; the container's end does."""
    words = ("gpulease", PATIENT, "docker", "run", "--name=web", *lease_options(), "tiny", *HOLDING)
    client = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert client.stdout
    assert client.stdout.readline() == "ok\n"
    container = docker.container("web")
    bound(container)
    client.send_signal(signal.SIGKILL)
    client.wait()
    client.stdout.close()
    assert docker.running(container)
    assert lease(container)["state"] == "active"
    said("docker", "kill", "web")
    released(container)


def test_started_again_it_gets_no_gpu(engine: Engine) -> None:
    """After the lease's end the container does not start."""
    container = holding(engine)
    said(engine.client, "kill", container.id)
    released(container)
    started = subprocess.run([engine.client, "start", container.id], capture_output=True, check=False)
    assert started.returncode != 0
    assert not engine.running(container)
