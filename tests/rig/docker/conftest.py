"""docker and podman as their packages run them, on the rig's kernel: systemd's cgroup driver, and dmem."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpulease.transport import Transport
from tests.rig.conftest import GUEST, missing

ROOT = Path(__file__).parents[3]
SOCKET = "/run/nodeagent/api.sock"
MACHINE = Path("/var/lib/nodeagent/machine")
PATIENT = "--timeout=2m"  # a grant may take long where the processor is emulated
SECONDS = 20 * float(os.environ.get("NODEAGENT_PATIENCE", "1"))
CGROUPS = Path("/sys/fs/cgroup")
APPLETS = ("sh", "printf", "sleep", "cat", "echo", "env")
# What a program in a container runs: a command for the GPU a word, an answer a line.
TAKE = """
exec 3<>"$(echo /dev/dri/renderD*)"
for words; do if printf %s "$words" >&3; then echo ok; else echo refused; fi 2>/dev/null; done
"""


@dataclass(frozen=True)
class Container:
    """A container and its lease."""

    id: str
    lease: int


@dataclass(frozen=True)
class Engine:
    """`docker` or `podman`, and the agent."""

    client: str

    def start(self, *command: str) -> Container:
        """Start a container in a lease of 1 GiB of the first GPU."""
        words = ("gpulease", PATIENT, self.client, "run", "--detach", *lease_options(), "tiny")
        return self.container(said(*words, *command))

    def container(self, name: str) -> Container:
        told = json.loads(said(self.client, "inspect", name))[0]
        return Container(told["Id"], int(told["Config"]["Labels"]["gpulease.lease"]))

    def take(self, container: Container, *words: str, before: tuple[str, ...] = ()) -> list[str]:
        """What a program gets that is started in the container; it holds all until it ends."""
        return said(self.client, "exec", container.id, *before, "sh", "-c", TAKE, "sh", *words).split()

    def running(self, container: Container) -> bool:
        return bool(json.loads(said(self.client, "inspect", container.id))[0]["State"]["Running"])


def lease_options() -> tuple[str, ...]:
    device = call("GET", "/v1/devices")["devices"][0]["device"]
    return ("--network=none", "--vram=1G", "--cu=25%", f"--lease-device={device}")


def said(*words: str) -> str:
    """What a command prints; it must not fail."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def call(method: str, target: str) -> Any:
    return json.loads(Transport(SOCKET, timeout=60).call(method, target).body)


def lease(container: Container) -> dict[str, Any]:
    return dict(call("GET", f"/v1/leases/{container.lease}"))


def cgroup(container: Container) -> Path:
    """The lease's, which the container is in."""
    return CGROUPS / f"gpulease.slice/gpulease-{container.lease}.slice"


def until(what: Callable[[], object], why: Callable[[], object] = lambda: "never") -> None:
    """Wait; how long that takes is not asserted beyond the patience."""
    deadline = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < deadline, why()
        time.sleep(0.2)


def bound(container: Container) -> None:
    """Wait until the lease is the container's."""
    until(lambda: lease(container)["container"]["id"] == container.id, lambda: lease(container))


def released(container: Container) -> None:
    """Wait for the lease's end, which must be a proved one."""
    until(lambda: lease(container)["state"] in ("released", "failed"), lambda: lease(container))
    assert lease(container)["state"] == "released", lease(container)
    assert not cgroup(container).exists()


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Both engines with one image, and the agent, as services."""
    if not GUEST.is_dir():
        pytest.skip("runs in the rig: make test-rig")
    if reason := missing(dmem=True):
        pytest.skip(reason)
    if shutil.which("dockerd") is None:
        pytest.skip("this guest was built without docker")
    for unit in ("docker.socket", "docker.service", "podman.socket"):
        said("systemctl", "start", unit)
    image = tmp_path_factory.mktemp("image") / "tiny.tar"
    make_image(image)
    for client in ("docker", "podman"):
        said(client, "import", str(image), "tiny")
    if subprocess.run(["systemctl", "--quiet", "is-active", "nodeagent"], check=False).returncode:
        said(str(ROOT / "tests/rig/agent"))
    make_device_nodes()


def make_image(path: Path) -> None:
    """An image of busybox alone."""
    with tarfile.open(path, "w") as file:
        file.add("/bin/busybox", "bin/busybox")
        for applet in APPLETS:
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            file.addfile(link)


def make_device_nodes() -> None:
    """Have fakegpu's devices where the machine's would be that the agent runs on."""
    (MACHINE / "dev/dri").mkdir(parents=True, exist_ok=True)
    for node in (Path("/dev/kfd"), *Path("/dev/dri").glob("renderD*")):
        there = MACHINE / str(node).lstrip("/")
        there.unlink(missing_ok=True)
        os.mknod(there, stat.S_IFCHR, node.stat().st_rdev)
        there.chmod(0o666)


@pytest.fixture(params=["docker", pytest.param("podman", marks=pytest.mark.slow)])
def engine(request: pytest.FixtureRequest, started: None) -> Iterator[Engine]:
    """Each engine. Containers go with a test, and leases with them."""
    yield Engine(request.param)
    for container in said(request.param, "ps", "--all", "--quiet").split():
        said(request.param, "rm", "--force", container)
    until(lambda: not call("GET", "/v1/leases?state=queued,preparing,active,lost,releasing")["leases"])


@pytest.fixture
def docker(engine: Engine) -> Engine:
    """The one with a daemon."""
    if engine.client != "docker":
        pytest.skip("podman has no daemon")
    return engine
