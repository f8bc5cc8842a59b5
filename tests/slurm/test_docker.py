"""A job's containers, by docker: they share the job's lease, and end with the job whatever is left of it."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import gpulease
from tests.docker.agent import make_device_nodes
from tests.docker.host import GPULEASE, _remove_cgroups
from tests.docker.images import IMAGES
from tests.docker.kinds import DOCKER, DOCKER_SOCKET, daemon_json

from .lab import Lab
from .space import children

pytestmark = [pytest.mark.slurm, pytest.mark.docker]
JOB = ("--gres=shard:1",)
RUN = "docker run --network=none --name=web"


@dataclass(frozen=True)
class Docker:
    """A dockerd on the node of GPUs, for every user; *gpulease* is the wrapper."""

    lab: Lab
    gpulease: Path

    def client(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.lab.node.space.run("docker", *words)

    def runs(self) -> bool:
        """Whether the container called web does."""
        shown = self.client("inspect", "--format={{.State.Running}}", "web")
        return shown.stdout.strip() == "true"

    def batch(self, script: str) -> str:
        """Submit a script, whose *gpulease* is the wrapper; the id of the job once its container runs."""
        said = self.lab.public("")
        said.chmod(0o666)
        lines = f"export HOME=/tmp\n{script.replace('gpulease', str(self.gpulease))}"
        job = self.lab.cluster.sbatch(lines, *JOB, f"--output={said}")
        self.lab.cluster.until(self.runs, why=said.read_text)
        return job

    def bound(self, lease: int) -> bool:
        """Whether the agent knows the container as the lease's."""
        name = self.client("inspect", "--format={{.Id}}", "web").stdout.strip()
        page = self.lab.agent.call("GET", f"/v1/leases?holder=docker:{name}")
        return lease in [one["id"] for one in page["leases"]]


@pytest.fixture(scope="module")
def shared_docker(shared_lab: Lab) -> Iterator[Docker]:
    if reason := DOCKER.missing() or IMAGES["busybox"].missing():
        pytest.skip(reason)
    lab, node = shared_lab, shared_lab.node
    directory, cgroup = node.directory / "docker", f"/nodeagent-test-{secrets.token_hex(6)}"
    directory.mkdir()
    shutil.copytree(Path(gpulease.__file__).parent, lab.cluster.directory / "client/gpulease")
    make_device_nodes(lab.agent)
    (directory / "daemon.json").write_text(daemon_json(directory, cgroup, False, group="root"))
    with (directory / "log").open("ab") as log:
        words = ("dockerd", f"--config-file={directory}/daemon.json")
        process = node.space.start(*words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    docker = Docker(lab, lab.public(GPULEASE.format(path=f"{lab.cluster.directory}/client")))
    try:
        lab.cluster.until(lambda: docker.client("version").returncode == 0, (directory / "log").read_text)
        node.path(DOCKER_SOCKET).chmod(0o666)
        with IMAGES["busybox"].archive(directory).open("rb") as file:
            node.space.run("docker", "import", "-", "busybox", stdin=file)
        yield docker
    finally:
        for pid in children(process.pid):
            os.kill(pid, signal.SIGTERM)
        process.wait(30)
        _remove_cgroups(cgroup.lstrip("/"))


@pytest.fixture
def docker(shared_docker: Docker, lab: Lab) -> Iterator[Docker]:
    """No container before and after."""
    yield shared_docker
    for container in shared_docker.client("ps", "--all", "--quiet").stdout.split():
        shared_docker.client("rm", "--force", container)


def lease_of(docker: Docker, job: str) -> dict[str, Any]:
    found = docker.lab.agent.lease(job)
    assert found is not None
    return found


def test_scancel_ends_the_jobs_container(docker: Docker) -> None:
    """It reaches docker's client alone; the container ends with the job's lease, and the node is clean."""
    job = docker.batch(f"exec gpulease {RUN} busybox sleep 600")
    lease = lease_of(docker, job)
    docker.lab.cluster.until(lambda: docker.bound(lease["id"]))
    assert [one["id"] for one in docker.lab.agent.leases()] == [lease["id"]]  # there is none beside
    docker.lab.cluster.cancel(job)
    assert not docker.runs()
    assert docker.lab.agent.call("GET", f"/v1/leases/{lease['id']}")["state"] == "released"
    assert docker.client("start", "web").returncode != 0


@pytest.mark.slow
def test_a_detached_container_ends_with_its_job(docker: Docker) -> None:
    """Whatever it does when it is asked to, and though the script ended well."""
    script = f"gpulease {RUN} --detach busybox sh -c 'trap \"\" TERM; while :; do sleep 1; done'; sleep 5"
    job = docker.batch(script)
    lease = lease_of(docker, job)
    docker.lab.cluster.ended(job)
    docker.lab.cluster.until(
        lambda: docker.lab.agent.call("GET", f"/v1/leases/{lease['id']}")["state"] == "released"
    )
    assert not docker.runs()


@pytest.mark.slow
def test_a_killed_client_is_no_end_of_the_container(docker: Docker) -> None:
    """The job goes on with it; a container that ends leaves the job its lease."""
    job = docker.batch(f"gpulease {RUN} busybox sleep 600 & client=$!; sleep 3; kill -9 $client; sleep 600")
    lease = lease_of(docker, job)
    docker.lab.cluster.until(lambda: docker.bound(lease["id"]))
    assert docker.runs()
    docker.client("kill", "web")
    docker.lab.cluster.until(lambda: not docker.bound(lease["id"]))
    assert lease_of(docker, job)["state"] == "active"


@pytest.mark.slow
def test_a_task_gets_no_more_than_its_job(docker: Docker) -> None:
    """What asks for a slice of its own is refused by the option's name."""
    words = (str(docker.gpulease), "docker", "run", "--vram=1G", "--network=none", "busybox", "true")
    done = docker.lab.cluster.srun(*JOB, *words, env={"HOME": "/tmp"})
    assert done.returncode != 0
    assert "BreaksFence: --vram: this runs in lease" in done.stderr
