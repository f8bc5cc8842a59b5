"""The engines that are tested, and the files that configure them."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.fakekfd.newer import newer_root

HERE = Path(__file__).parent
RUNTIME = HERE / "runtime"
DOCKER_SOCKET, PODMAN_SOCKET = "/run/docker.sock", "/run/podman/podman.sock"


@dataclass(frozen=True)
class Kind:
    """An engine as a distribution ships it. *unified*: on cgroup2 alone, whatever else this machine has."""

    name: str
    client: str
    unified: bool
    chroot: bool = False

    @property
    def root(self) -> Path:
        """The root directory that its programs are in."""
        return newer_root() or Path("/nonexistent") if self.chroot else Path("/")

    @property
    def socket(self) -> str:
        return DOCKER_SOCKET if self.client == "docker" else PODMAN_SOCKET

    def missing(self) -> str | None:
        """Why it cannot run here."""
        if os.geteuid():
            return "an engine needs uid 0"
        if self.chroot:
            made = (self.root / "usr/sbin/dockerd").exists()
            return None if made else "needs the newer docker's chroot, which make test-docker makes"
        programs = ("dockerd", "containerd", "runc") if self.client == "docker" else ("podman", "runc")
        lacks = next((program for program in programs if shutil.which(program) is None), None)
        return f"needs {lacks}: make test-docker installs it" if lacks else None


# Debian 12's, which knows no CDI: on the cgroups that this machine has, version 1 beside 2 as may be.
DOCKER = Kind("docker", "docker", unified=False)
NEWER_DOCKER = Kind("newer-docker", "docker", unified=True, chroot=True)
PODMAN = Kind("podman", "podman", unified=True)
KINDS = {kind.name: kind for kind in (DOCKER, NEWER_DOCKER, PODMAN)}


def params(*kinds: Kind) -> list[Any]:
    """Of a fixture: all but the newer docker are left out with the slow tests."""
    return [pytest.param(kind, marks=() if kind is NEWER_DOCKER else pytest.mark.slow) for kind in kinds]


# For tests that are to run with every engine also where slow tests are left out.
with_each_engine = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS, indirect=True)
# For what podman has not: a daemon, and a group whose members may talk to it.
with_each_daemon = pytest.mark.parametrize(
    "kind", params(DOCKER, NEWER_DOCKER), ids=[DOCKER.name, NEWER_DOCKER.name], indirect=True
)


def daemon_json(directory: Path, cgroup: str, fake: bool, **more: object) -> str:
    """dockerd's settings: all it writes is below *directory*; no networks. *fake*: on the fake kernel."""
    settings: dict[str, object] = {
        "data-root": f"{directory}/data",
        "exec-root": f"{directory}/exec",
        "pidfile": f"{directory}/pid",
        "hosts": [f"unix://{DOCKER_SOCKET}"],
        "group": "docker",
        "bridge": "none",
        "iptables": False,
        "ip6tables": False,
        "ip-forward": False,
        "cgroup-parent": cgroup,
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
        "shutdown-timeout": 5,
    }
    if fake:
        settings |= {"runtimes": {"fake": {"path": str(RUNTIME)}}, "default-runtime": "fake"}
    return json.dumps(settings | more)


# In /run, which is the host's own also where dockerd is in a chroot. The older one would not start with this.
CDI = {"features": {"cdi": True}, "cdi-spec-dirs": ["/run/cdi"]}


def podman_files(directory: Path, fake: bool) -> dict[str, str]:
    """podman's, by name below /etc/containers. No limits: cgroup2 may be without any controller."""
    runtime = "fake" if fake else "runc"  # crun wants a capability that not every machine's root has
    return {
        "containers.conf": f"""\
[containers]
pids_limit = 0
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "{runtime}"
[engine.runtimes]
fake = ["{RUNTIME}"]
""",
        "storage.conf": f"""\
[storage]
driver = "overlay"
graphroot = "{directory}/data"
runroot = "/run/containers/storage"
""",
    }
