"""podman without root: the container stays where podman was started, which is in the lease."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import GPUS, Lab
from .host import USERS, Host
from .images import IMAGES
from .kinds import PODMAN

pytestmark = [pytest.mark.docker, pytest.mark.hook]
ALICE = USERS["alice"]
# crun: podman's own choice where it may choose; runc asks for cgroups that a user has not.
SCRIPT = """\
#!/bin/sh
export HOME={home} XDG_RUNTIME_DIR={home}
exec /usr/bin/podman --root={home}/root --runroot={home}/run --tmpdir={home}/tmp --log-level=error \\
    --storage-driver=vfs --events-backend=none --cgroup-manager=cgroupfs \\
    --runtime=crun --runtime-flag=root={home}/crun "$@"
"""


class Rootless:
    """alice's podman, in the engine's sight of the host: there the fake kernel's GPUs are device files."""

    def __init__(self, host: Host, home: Path) -> None:
        self.host = host
        self._home = home
        (home / "bin").mkdir(parents=True)
        (home / "bin/podman").write_text(SCRIPT.format(home=home))
        (home / "bin/podman").chmod(0o755)
        os.chown(home, ALICE, ALICE)

    def run(self, *words: str, **options: object) -> subprocess.CompletedProcess[str]:
        path = f"{self._home}/bin:{self.host.directory}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin"
        who = ["setpriv", f"--reuid={ALICE}", f"--regid={ALICE}", "--clear-groups"]
        return self.host.view.run(*who, *words, env={"PATH": path, "HOME": str(self._home)}, **options)

    def lease(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`gpulease podman run` of words."""
        share = ("--vram=8G", "--cu=25%", "--network=none")
        return self.run("gpulease", "podman", "run", *share, *words)


@pytest.fixture
def rootless(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rootless]:
    """alice's podman on a host with the fake kernel's GPUs, with the glibc image."""
    host, agent = lab.host(PODMAN, GPUS)
    home = Path(host.directory, "rootless")
    podman = Rootless(host, home)
    with IMAGES["glibc"].archive(tmp_path_factory.mktemp("image")).open("rb") as file:
        done = podman.run("podman", "import", "-", "glibc", stdin=file)
    if done.returncode:
        pytest.skip(f"podman does not work without root here: {done.stderr}")
    yield podman
    podman.run("podman", "rm", "--force", "--all")
    host.until(lambda: not agent.leftovers())
    shutil.rmtree(home)


def test_the_container_is_in_the_lease(rootless: Rootless) -> None:
    """Its processes are in the lease's cgroup, with the hook loaded and one GPU; the exit code is its own."""
    seen = "echo $ROCR_VISIBLE_DEVICES ${HIP_VISIBLE_DEVICES-unset}"
    see = f"grep -c libgpulease /proc/self/maps; ls /dev/dri; {seen}"
    done = rootless.lease("--rm", "glibc", "sh", "-c", f"{see}; exit 5")
    assert done.returncode == 5, done.stderr
    mapped, node, seen = done.stdout.splitlines()
    assert int(mapped) > 0
    assert node.startswith("renderD")
    assert seen.endswith(" unset")
    assert "memory hook" in done.stderr


def test_in_the_background(rootless: Rootless) -> None:
    """A container in the background keeps the lease, in whose cgroup it is, until it ends."""
    done = rootless.lease("--detach", "glibc", "sleep", "600")
    assert done.returncode == 0, done.stderr
    pid = rootless.run("podman", "inspect", "--format={{.State.Pid}}", done.stdout.strip()).stdout.strip()
    assert "gpulease" in rootless.host.view.run("cat", f"/proc/{pid}/cgroup").stdout
    assert len(active(rootless)) == 1
    rootless.run("podman", "kill", done.stdout.strip())
    rootless.host.until(lambda: not active(rootless))


def test_what_is_started_later_is_outside(rootless: Rootless) -> None:
    """`podman exec` starts a program where its caller is: outside, as docs/docker.md says."""
    done = rootless.lease("--detach", "glibc", "sleep", "600")
    words = ("podman", "exec", done.stdout.strip(), "cat", "/proc/self/cgroup")
    exec_in = rootless.run(*words).stdout
    assert exec_in and "gpulease" not in exec_in.splitlines()[-1]


def test_what_podman_refuses_leaves_no_lease(rootless: Rootless) -> None:
    """Podman's own refusal is its own, and the lease ends with it."""
    done = rootless.lease("--rm", "--memory=nonsense", "glibc", "true")
    assert done.returncode == 125
    rootless.host.until(lambda: not active(rootless))


def active(rootless: Rootless) -> list[object]:
    return json.loads(rootless.run("gpulease", "--json", "status").stdout)["leases"]
