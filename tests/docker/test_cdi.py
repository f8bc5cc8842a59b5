"""Leases as CDI devices, for command lines of the users' own: docker 26.1 and podman 4.3."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.slurm.agent import ServedAgent
from tests.slurm.space import ROOT

from .conftest import GPUS, Lab, clean
from .host import Host
from .kinds import NEWER_DOCKER, PODMAN, Kind, params

pytestmark = pytest.mark.docker
COMPOSE = ROOT / "docs/compose.yaml"
Image = Callable[[Host, str], str]
GRANT = "gpulease grant {} --cu 25% --vram 8G"
FOR_MANY = (*GRANT.format("--cdi --ttl=10m").split(), "--json")
SHOWN = (8 << 30) - (8 << 30) // 100
HELD = ("sleep", "1000")


@pytest.fixture(params=params(NEWER_DOCKER, PODMAN), ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    """The engines that know CDI."""
    return request.param


@pytest.fixture
def device(engine: Host, agent: ServedAgent) -> Iterator[dict[str, Any]]:
    """A lease that is a device, as the agent shows it; released in the end."""
    lease = json.loads(engine.run(*FOR_MANY).stdout)
    yield lease
    agent.call("DELETE", f"/v1/leases/{lease['id']}?wait=5")


def words(lease: dict[str, Any], *more: str) -> tuple[str, ...]:
    return ("--network=none", "--device", lease["container"]["cdi"], *more)


def end(agent: ServedAgent, lease: dict[str, Any]) -> None:
    """Release a lease, and see its slice proved clean."""
    target = f"/v1/leases/{lease['id']}?wait=5"
    agent.call("DELETE", target)
    while (shown := agent.call("GET", target))["state"] == "releasing":
        continue
    assert shown["state"] == "released", shown


def test_docker_run_with_a_granted_lease(engine: Host, agent: ServedAgent, image: Image) -> None:
    """As the documentation has it, by a user: the lease's nodes alone are there, and its variables."""
    name, client = image(engine, "busybox"), engine.kind.client
    inside = "ls /dev/kfd /dev/dri; echo $ROCR_VISIBLE_DEVICES $HIP_VISIBLE_DEVICES $GPULEASE_ID"
    grant = GRANT.format(f"--cdi {client}")
    line = f"{client} run --rm --network=none $({grant}) {name} sh -c '{inside}'"
    ran = engine.run("sh", "-c", line, user="alice" if client == "docker" else None)
    kfd, dri, render, visible, hip, number = ran.stdout.split() or [ran.stderr] * 6
    lease = agent.call("GET", f"/v1/leases/{number}")
    device = agent.call("GET", f"/v1/devices/{lease['slices'][0]['device']}")
    assert (kfd, dri, render) == ("/dev/kfd", "/dev/dri:", device["render_node"])
    assert (visible, hip) == (device["uuid"], "0")
    end(agent, lease)


@pytest.fixture
def anchored(engine: Host, agent: ServedAgent, image: Image) -> dict[str, Any]:
    """A lease that lives by the container `held`, which is running and known as its."""
    name, client = image(engine, "busybox"), engine.kind.client
    grant = GRANT.format(f"--cdi {client}")
    line = f"{client} run --detach --name=held --network=none $({grant}) {name} {' '.join(HELD)}"
    engine.said("ps")  # podman answers by its socket from now on
    started = engine.run("sh", "-c", line)
    assert started.returncode == 0, started.stderr
    (lease,) = agent.leases()
    engine.until(lambda: agent.call("GET", f"/v1/leases/{lease['id']}")["anchor"]["armed"])
    return lease


def test_a_lease_ends_with_the_container_that_was_given_it(
    engine: Host, agent: ServedAgent, anchored: dict[str, Any]
) -> None:
    """However that ends."""
    engine.said("kill", "held")
    engine.until(lambda: agent.call("GET", f"/v1/leases/{anchored['id']}")["state"] == "released")


def test_a_container_ends_with_the_lease_that_it_was_given(
    engine: Host, agent: ServedAgent, anchored: dict[str, Any]
) -> None:
    """It would hold what is another's by then; and it is not started again."""
    assert agent.call("DELETE", f"/v1/leases/{anchored['id']}?wait=5")["state"] in ("releasing", "released")
    engine.until(lambda: not engine.inspect("held")["State"]["Running"])
    engine.until(lambda: agent.call("GET", f"/v1/leases/{anchored['id']}")["state"] == "released")
    assert engine.client("start", "held").returncode != 0


def test_who_else_was_given_a_device_ends_with_its_lease(
    engine: Host, agent: ServedAgent, image: Image, device: Any
) -> None:
    """Also without the cgroup and the labels that were printed: nobody has the slice before all are gone."""
    name = image(engine, "busybox")
    engine.said("run", "--detach", "--name=other", *words(device), name, *HELD)
    agent.call("DELETE", f"/v1/leases/{device['id']}?wait=5")
    engine.until(lambda: agent.call("GET", f"/v1/leases/{device['id']}")["state"] in ("released", "failed"))
    shown = agent.call("GET", f"/v1/leases/{device['id']}")
    assert (shown["state"], engine.inspect("other")["State"]["Running"]) == ("released", False), shown


def test_a_device_is_revoked_with_its_lease(
    engine: Host, agent: ServedAgent, image: Image, device: Any
) -> None:
    """Neither a new container nor one that was made, or ran, before gets the GPU."""
    name = image(engine, "busybox")
    engine.said("create", "--name=made", *words(device), name, *HELD)
    engine.said("run", "--detach", "--name=ran", *words(device), name, *HELD)
    engine.said("stop", "--time=0", "ran")
    end(agent, device)
    for attempt in (
        ("start", "made"),
        ("start", "ran"),
        ("restart", "ran"),
        ("run", *words(device), name, "true"),
    ):
        refused = engine.client(*attempt)
        assert refused.returncode != 0
        assert "unresolvable CDI devices" in refused.stderr


def test_a_container_that_restarts_by_itself_ends_with_its_lease(
    engine: Host, agent: ServedAgent, image: Image, device: Any
) -> None:
    """It is stopped with the lease, and its engine does not start it again."""
    name = image(engine, "busybox")
    engine.said("run", "--detach", "--name=again", "--restart=always", *words(device), name, *HELD)
    end(agent, device)
    assert not engine.inspect("again")["State"]["Running"]
    refused = engine.client("start", "again")
    assert refused.returncode != 0 and "unresolvable CDI devices" in refused.stderr


def test_no_user_reads_a_devices_name(engine: Host, device: Any) -> None:
    """The directory is open, for others' devices lie there; the file is not."""
    (file,) = engine.path("/run/cdi").glob(f"nodeagent-*-{device['id']}.json")
    assert device["container"]["cdi"].partition("=")[2] in file.read_text()
    refused = engine.run("cat", f"/run/cdi/{file.name}", user="bob")
    assert refused.returncode != 0 and "Permission denied" in refused.stderr
    shown = engine.run("gpulease", "show", str(device["id"]), "--json", user="bob")
    assert json.loads(shown.stdout)["container"] is None


def test_what_an_image_says_of_devices_is_overruled(engine: Host, image: Image, device: Any) -> None:
    """Variables that would choose among, or mask, what the lease gives."""
    name = image(engine, "busybox")
    variables = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROC_GLOBAL_CU_MASK", "HSA_CU_MASK_SKIP_INIT")
    users = [f"--env={variable}=5" for variable in variables]
    shown = engine.said("run", "--rm", *users, *words(device), name, "env").splitlines()
    wanted = dict(zip(variables, ("0", "0", "", "0"), strict=True))
    assert {line for line in shown if line.partition("=")[0] in wanted} == {
        f"{variable}={value}" for variable, value in wanted.items()
    }


def test_every_user_of_a_container_has_the_nodes(engine: Host, image: Image, device: Any) -> None:
    """Whatever groups the node's own have: no --group-add is needed."""
    name = image(engine, "busybox")
    opened = ("sh", "-c", "echo x >/dev/kfd && echo opened")
    assert engine.said("run", "--rm", "--user=1234", *words(device), name, *opened) == "opened"


def test_the_agent_gone_a_device_stays(engine: Host, agent: ServedAgent, image: Image, device: Any) -> None:
    """A lease's next container does not hang on the agent; its next start finds the device."""
    name = image(engine, "busybox")
    agent.kill()
    assert engine.client("run", "--rm", *words(device), name, "true").returncode == 0
    agent.start()
    assert agent.call("GET", f"/v1/leases/{device['id']}")["container"]["cdi"] == device["container"]["cdi"]


@dataclass(frozen=True)
class Given:
    """A lease of one of the fake kernel's GPUs, which is a device on *host*."""

    host: Host
    lease: dict[str, Any]
    kfd_node: int
    gpu_id: int

    def run(self, image: str, *command: str, enter: Sequence[str] = ("run", "--rm")) -> list[str]:
        """What a command in a container of the lease prints."""
        return self.host.client(*enter, *words(self.lease), image, *command).stdout.split("\n")[:-1]


@pytest.fixture
def given(lab: Lab, kind: Kind) -> Iterator[Given]:
    """A lease of a fake GPU; both end with the test."""
    host, agent = lab.host(kind, GPUS)
    for _ in clean(host, agent):
        lease = json.loads(host.run(*FOR_MANY).stdout)
        device = agent.call("GET", f"/v1/devices/{lease['slices'][0]['device']}")
        yield Given(host, lease, device["kfd_node"], device["gpu_id"])
        host.remove_containers()
        end(agent, lease)


def test_a_container_sees_banks_of_its_slices_size(given: Given, image: Image) -> None:
    """Over sysfs, where neither the container nor its root can take them away."""
    path = f"/sys/class/kfd/kfd/topology/nodes/{given.kfd_node}/mem_banks"
    take = f"umount {path}; cat {path}/0/properties"
    assert f"size_in_bytes {SHOWN}" in given.run(image(given.host, "busybox"), "sh", "-c", take)


@pytest.mark.parametrize("before", [(), ("env", "-i")], ids=["as it is", "env -i"])
def test_the_hook_is_in_the_container(given: Given, image: Image, before: tuple[str, ...]) -> None:
    """By a file that no program's environment takes away: what fits is allocated, what does not is denied."""
    asked = (str(given.gpu_id), str(4 << 30), str(8 << 30))
    assert given.run(image(given.host, "glibc"), *before, "/bin/take", *asked) == ["allocated", "denied"]


def test_the_hook_is_in_containers_of_musl(given: Given, image: Image) -> None:
    """Whose loader reads no file: by a variable."""
    asked = (str(given.gpu_id), str(4 << 30), str(8 << 30))
    assert given.run(image(given.host, "musl"), "/bin/take", *asked) == ["allocated", "denied"]


def test_the_compose_file_of_the_documentation(newer: Host, lab: Lab, image: Image) -> None:
    """`docker compose up` with what `gpulease grant --cdi env` writes; without a lease it says what to do."""
    agent = lab.host(NEWER_DOCKER)[1]
    plugin = NEWER_DOCKER.root / "usr/libexec/docker/cli-plugins/docker-compose"
    if not plugin.exists():
        pytest.skip("needs docker compose, which the chroot of make test-docker has")
    name = image(newer, "busybox")
    directory = newer.directory / "compose"
    directory.mkdir()
    command = "sh -c 'ls /dev/dri; echo lease $$GPULEASE_ID'"
    text = COMPOSE.read_text().replace("rocm/pytorch", name).replace("python train.py", command)
    (directory / "compose.yaml").write_text(text + "    network_mode: none\n")
    compose = (str(plugin), "--project-directory", str(directory))
    without = newer.run(*compose, "up")
    assert without.returncode != 0
    assert "take a lease: gpulease grant --cdi env" in without.stderr
    granted = newer.run("sh", "-c", f"{GRANT.format('--cdi env')} >{directory}/.env")
    (lease,) = agent.leases()
    up = newer.run(*compose, "up", "--no-color")
    assert up.returncode == 0, up.stderr
    assert f"lease {lease['id']}" in up.stdout, granted.stderr
    assert "renderD" in up.stdout
    newer.run(*compose, "down")
    end(agent, lease)
