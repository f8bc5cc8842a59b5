"""Leases' containers behind the plugin, with an agent: what it wrote is what the plugin takes, and binds."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import pytest

from tests.fakekfd.fuse_kfd import usable
from tests.slurm.agent import served
from tests.slurm.space import ROOT

from .agent import DockerAgent
from .conftest import GPUS, MACHINE, Lab
from .guarded import Guarded, guarded_host
from .kinds import DOCKER, NEWER_DOCKER, params
from .leased import Leased
from .test_inside import HELD, on_first, take

pytestmark = pytest.mark.docker


@pytest.fixture(scope="session", params=params(DOCKER, NEWER_DOCKER), ids=lambda kind: kind.name)
def shared_leases(request: pytest.FixtureRequest, lab: Lab) -> Iterator[tuple[Guarded, Leased]]:
    """A dockerd of each age that asks the plugin, and an agent on a simulated machine."""
    if reason := request.param.missing():
        pytest.skip(reason)
    with (
        guarded_host(request.param) as guarded,
        served(DockerAgent(guarded.host, MACHINE, settings="")) as agent,
    ):
        yield guarded, Leased(guarded.host, agent, lab.load)


@pytest.fixture
def guarded(shared_leases: tuple[Guarded, Leased], leased: Leased) -> Guarded:
    """The host's plugin."""
    return shared_leases[0]


@pytest.fixture
def leased(shared_leases: tuple[Guarded, Leased]) -> Iterator[Leased]:
    """No container and no lease, before and after."""
    leased = shared_leases[1]
    leased.image(leased.host, "busybox")
    yield leased
    leased.host.remove_containers()
    leased.host.until(lambda: not leased.agent.leftovers())


def test_a_user_gets_a_lease_and_no_gpu_without(leased: Leased) -> None:
    """`gpulease docker run` passes, and the same device by hand does not."""
    done = leased.run(("ls", "/dev/kfd"), user="alice")
    assert (done.returncode, done.stdout) == (0, "/dev/kfd\n"), done.stderr
    device = str(leased.agent.state / "machine/dev/kfd")
    words = ("run", "--rm", f"--device={device}:/dev/kfd", "busybox", "true")
    refused = leased.host.client(*words, user="alice")
    assert refused.returncode == 125
    assert "gpulease docker run" in refused.stderr


def test_a_lease_is_the_first_containers(leased: Leased, guarded: Guarded) -> None:
    """The agent binds the one that the plugin saw; who copies its words from `docker inspect` gets none."""
    container = leased.start()
    leased.bound(container)
    (bound,) = leased.host.path("/run/nodeagent/tickets").glob("*/*.bound")
    assert json.loads(bound.read_text())["container"] == container.id
    told = leased.host.inspect(container.id)
    copied = guarded.create(told["HostConfig"], Labels=told["Config"]["Labels"])
    assert copied.refused, copied
    assert guarded.create({"VolumesFrom": [container.id]}).refused
    assert leased.state(container) == "active"
    leased.host.said("rm", "--force", container.id)
    leased.released(container)


def test_leases_containers_go_on_without_the_agent(leased: Leased, guarded: Guarded) -> None:
    """docker serves them and everybody else, and refuses a GPU as before."""
    container = leased.start()
    leased.bound(container)
    leased.agent.stop()
    try:
        assert leased.host.said("exec", container.id, "echo", "on") == "on"
        assert leased.host.said("run", "--rm", "--network=none", "busybox", "echo", "too") == "too"
        assert guarded.create({"Privileged": True}).refused
        assert leased.run(("true",)).returncode == 125
    finally:
        leased.agent.start()
    leased.host.said("stop", "--time=0", container.id)
    leased.host.said("rm", container.id)
    leased.released(container)


@pytest.mark.parametrize("shared_leases", [NEWER_DOCKER], indirect=True, ids=["newer-docker"])
def test_a_cdi_device_is_taken_once(leased: Leased) -> None:
    """As it was granted, for a command line of the user's own."""
    host = leased.host
    line = "echo $(gpulease grant --cdi --cu 25% --vram 4G)"
    words = ("run", "--network=none", *host.run("sh", "-c", line).stdout.split(), "busybox", "ls", "/dev/kfd")
    done, again = (host.client(*words, user="alice") for _ in range(2))
    guessed = host.client("run", f"--device=nodeagent.local/lease={'f' * 32}", "busybox", "true")
    for lease in leased.agent.leases():
        leased.agent.call("DELETE", f"/v1/leases/{lease['id']}?wait=5")
    assert done.stdout == "/dev/kfd\n", done.stderr
    assert "spent" in again.stderr
    assert "spent or wrong" in guessed.stderr


@pytest.mark.parametrize("shared_leases", [NEWER_DOCKER], indirect=True, ids=["newer-docker"])
def test_the_compose_example_passes(leased: Leased) -> None:
    """docs/compose.yaml with a lease in its environment: compose's words for a CDI device are a ticket."""
    host = leased.host
    directory = host.directory / "compose"
    directory.mkdir()
    text = (ROOT / "docs/compose.yaml").read_text().replace("rocm/pytorch", "busybox")
    text = text.replace("python train.py", "ls /dev/kfd") + "    network_mode: none\n"
    (directory / "compose.yaml").write_text(text)
    host.run("sh", "-c", f"gpulease grant --cdi env --cu 25% --vram 4G >{directory}/.env")
    words = ("compose", "--project-directory", str(directory))
    up = host.client(*words, "up", "--no-color")
    again = host.client(*words, "up", "--force-recreate")
    host.client(*words, "down")
    for lease in leased.agent.leases():
        leased.agent.call("DELETE", f"/v1/leases/{lease['id']}?wait=5")
    assert (up.returncode, "/dev/kfd" in up.stdout) == (0, True), up.stderr
    assert "spent" in again.stderr


@pytest.mark.slow
def test_a_container_in_a_lease_has_a_ticket_of_its_own(leased: Leased) -> None:
    """It passes as a lease's own does, and what copies its labels from `docker inspect` does not."""
    client = ("docker", "run", "--detach", "--network=none", "--name=web", "busybox", "sleep", "600")
    words = ("gpulease", "run", "--vram=4G", "--cu=25%", "--", "sh", "-c", '"$@" && sleep 600', "sh")
    shell = leased.host.start(*words, "gpulease", *client, user="alice")
    container = leased.running()
    labels = leased.host.inspect(container.id)["Config"]["Labels"]
    copied = [f"--label={name}={value}" for name, value in labels.items()]
    device = f"--device={leased.agent.state}/machine/dev/kfd:/dev/kfd"
    again = leased.host.client("run", "--rm", *copied, device, "busybox", "true", user="alice")
    assert again.returncode == 125 and "ticket is spent or wrong" in again.stderr
    leased.signal_client(shell, signal.SIGTERM)
    leased.released(container)


@pytest.mark.slow
def test_a_supervised_lease_passes_with_its_profile(lab: Lab) -> None:
    """The client's words carry the very profile of the ticket, by which a static program is asked about."""
    if reason := NEWER_DOCKER.missing() or usable():
        pytest.skip(reason)
    with (
        guarded_host(NEWER_DOCKER, GPUS) as guarded,
        served(DockerAgent(guarded.host, None, settings="")) as agent,
    ):
        leased = Leased(guarded.host, agent, lab.load)
        done = leased.run(take(leased), on_first(leased), image="static", user="alice")
        guarded.host.until(lambda: not agent.leftovers())
    assert done.stdout.split() == HELD, done.stderr
    assert "memory supervised" in done.stderr
