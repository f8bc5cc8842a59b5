"""A host with a container engine, in namespaces of its own: the engine's, the agent's and the GPUs' files.

From inside it is a machine: the engine's socket is /run/docker.sock, the agent's /run/nodeagent/api.sock. Its
containers, daemons and mounts end with it, also when the tests are killed; cgroups are removed here.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import gpulease
from tests.fakekfd.control import ask
from tests.slurm.space import ENVIRONMENT, OWN_NET, ROOT, Space, children, space

from .kinds import CDI, Kind, daemon_json, podman_files

Found = TypeVar("Found")
SECONDS = 30
USERS = {"alice": 61001, "bob": 61002}
DOCKER_GROUP = 61000  # alice's and bob's, too
# Arguments: a directory, and whether cgroup2 is to be all there is.
HEAD = """
ip link set lo up
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -m 755 -p /run/lock /run/nodeagent /run/podman /run/cdi
mkdir "$1/top" "$1/work"
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$1/top,workdir=$1/work" /etc
mkdir -m 755 -p /etc/nodeagent /etc/docker /etc/containers
[ -z "$2" ] || { umount -l /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup; }
"""
# What the agent mounts later is to be seen by the engine.
NODE = "mount --make-rshared /\n"
# What the engine sees. Arguments: the directory, its root, the checkout.
VIEW = """
dir=$1 root=$2 checkout=$3
echo $$ >"$dir/view"
if [ -d /run/fakekfd ]; then
    mkdir -p "$dir/dev/dri"
    for path in /dev/kfd /dev/dri/renderD*; do
        mknod -m 666 "$dir$path" c 1 3 && mount --bind "$dir$path" "$path"
    done
fi
[ "$root" != / ] || return 0
mkdir "$dir/chroot" "$dir/chroot.top" "$dir/chroot.work"
mount -t overlay overlay -o "lowerdir=$root,upperdir=$dir/chroot.top,workdir=$dir/chroot.work" "$dir/chroot"
for path in /proc /sys /dev /run /tmp /etc/docker /etc/group /etc/passwd "$checkout"; do
    [ -f "$path" ] || mkdir -p "$dir/chroot$path"
    mount --rbind "$path" "$dir/chroot$path"
done
# A root of the namespace's own: `docker exec` would leave one that is only chroot's.
cd "$dir/chroot" && pivot_root . mnt && cd /
"""
GPULEASE = """\
#!/usr/bin/python3 -I
import sys
sys.path.insert(0, {path!r})
from gpulease.cli import main
sys.exit(main())
"""
# podman has no daemon: the program itself has to see what the engine does.
PODMAN = (
    '#!/bin/sh\nexec nsenter --mount="/proc/$(cat {directory}/view)/ns/mnt" --wd=/ -- /usr/bin/podman "$@"\n'
)


@dataclass
class Host:
    """A host and its engine. *space*: where users and the agent are; *view*: where the engine is."""

    kind: Kind
    directory: Path
    space: Space
    view: Space
    cgroup: str
    process: subprocess.Popen[str] | None = None

    @property
    def users(self) -> dict[str, int]:
        """The uids of its users by name; all may use docker."""
        return USERS

    @property
    def fake(self) -> bool:
        """Whether it has the fake kernel's GPUs."""
        return (self.directory / "kernel").exists()

    def path(self, absolute: str) -> Path:
        """A file of the host's, as seen from outside."""
        return self.space.root / absolute.lstrip("/")

    def run(self, *words: str, user: str | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, as a user by name; root if none is given."""
        return self.space.run(*self._words(words, user), **self._options(user, options))

    def start(self, *words: str, user: str | None = None, **options: Any) -> subprocess.Popen[str]:
        """Start a command and leave it running; `tests.slurm.space.end` kills it."""
        return self.space.start(*self._words(words, user), **self._options(user, options))

    def client(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command of the engine's: `docker …` or `podman …`."""
        return self.run(self.kind.client, *words, **options)

    def said(self, *words: str, **options: Any) -> str:
        """What a command of the engine's prints; it must not fail."""
        done = self.client(*words, **options)
        assert done.returncode == 0, f"{done.stderr}\n{self.log()}"
        return done.stdout.strip()

    def inspect(self, container: str) -> dict[str, Any]:
        """All that the engine says of a container."""
        return json.loads(self.said("inspect", "--type=container", container))[0]

    def containers(self) -> list[str]:
        """The ids of all, running or not."""
        return self.said("ps", "--all", "--quiet", "--no-trunc").split()

    def remove_containers(self) -> None:
        for container in self.containers():
            self.client("rm", "--force", container)

    def kernel(self, **question: Any) -> Any:
        """The fake kernel's state (tests/fakekfd/control.py)."""
        return ask(self.directory / "kernel", **question)

    def start_engine(self, **settings: object) -> None:
        """Start it and wait until it answers. *settings*: more of dockerd's daemon.json."""
        if self.kind.client == "docker":
            cdi = CDI if self.kind.chroot else {}
            text = daemon_json(self.directory, self.cgroup, self.fake, **(cdi | settings))
            self.path("/etc/docker/daemon.json").write_text(text)
        words = ["dockerd"] if self.kind.client == "docker" else _podman_service(self.kind.socket)
        with (self.directory / "engine.log").open("ab") as log:
            self.process = self.view.start(*words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.until(self._answers)

    def stop_engine(self, number: int = signal.SIGTERM) -> None:
        """Send it a signal that ends it, and wait for that. With live-restore its containers go on."""
        assert self.process is not None
        for pid in children(self.process.pid):
            os.kill(pid, number)
        self.process.wait(SECONDS)

    def restart_engine(self, number: int = signal.SIGTERM, **settings: object) -> None:
        self.stop_engine(number)
        self.start_engine(**settings)

    def until(self, what: Callable[[], Found], seconds: float = SECONDS) -> Found:
        """Look until *what* gives something true; how long it takes is not asserted beyond the wait."""
        deadline = time.monotonic() + seconds
        while not (found := what()):
            assert time.monotonic() < deadline, f"never\n{self.log()}"
            time.sleep(0.1)
        return found

    def log(self) -> str:
        """The last that engine and agent said."""
        logs = (self.directory / "engine.log", self.directory / "agent.log")
        return "\n".join(log.read_text(errors="replace")[-3000:] for log in logs if log.exists())

    def _answers(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self.log()
        return (
            self.run("curl", "-qsf", "--unix-socket", self.kind.socket, "http://engine/_ping").returncode == 0
        )

    def _words(self, words: tuple[str, ...], user: str | None) -> list[str]:
        groups = f"--groups={DOCKER_GROUP}"
        who = [] if user is None else ["setpriv", f"--reuid={USERS[user]}", f"--regid={USERS[user]}", groups]
        return [*who, *words]

    def _options(self, user: str | None, options: dict[str, Any]) -> dict[str, Any]:
        env = {
            "PATH": f"{self.directory}/bin:{ENVIRONMENT['PATH']}",
            "DOCKER_CONFIG": f"{self.directory}/config",
            "HOME": f"{self.directory}/home/{user or 'root'}",
        }
        return {**options, "env": {**env, **options.get("env", {})}}


def _podman_service(socket: str) -> list[str]:
    return ["podman", "system", "service", "--time=0", f"unix://{socket}"]


@contextlib.contextmanager
def running_host(kind: Kind, gpus: int = 0) -> Iterator[Host]:
    """A host whose engine runs, with *gpus* of the fake kernel's."""
    directory = Path(tempfile.mkdtemp(prefix="docker-"))
    directory.chmod(0o755)
    cgroup = f"/nodeagent-test-{secrets.token_hex(6)}"
    with contextlib.ExitStack() as last:
        last.callback(shutil.rmtree, directory, ignore_errors=True)
        last.callback(_remove_cgroups, cgroup.lstrip("/"))
        unified = "yes" if kind.unified else ""
        head = last.enter_context(space(HEAD, str(directory), unified, own=OWN_NET))
        before = head.command(*_fake_kernel(directory, gpus), at=str(ROOT))
        node = last.enter_context(space(NODE, own=(), before=before))
        view = last.enter_context(_view(kind, directory, node))
        host = Host(kind, directory, node, view, cgroup)
        _write_files(host)
        host.start_engine()
        yield host
        host.remove_containers()
        host.stop_engine()


def _fake_kernel(directory: Path, gpus: int) -> list[str]:
    words = [
        sys.executable,
        "-m",
        "tests.fakekfd",
        "--gpus",
        str(gpus),
        "--socket",
        f"{directory}/kernel",
        "--",
    ]
    return words if gpus else []


def _view(kind: Kind, directory: Path, node: Space) -> contextlib.AbstractContextManager[Space]:
    script = f'view() {{ {VIEW} }}\nview "$@"\n'
    arguments = (str(directory), str(kind.root), str(ROOT))
    return space(script, *arguments, own=("--propagation=slave",), before=node.command())


def _write_files(host: Host) -> None:
    """What is configured in /etc, and the commands for users."""
    etc = host.path("/etc")
    lines = "".join(f"{name}:x:{uid}:{uid}::/tmp:/bin/sh\n" for name, uid in USERS.items())
    groups = f"docker:x:{DOCKER_GROUP}:{','.join(USERS)}\n"
    kept = [line for line in (etc / "group").read_text().splitlines() if not line.startswith("docker:")]
    (etc / "group").write_text("\n".join(kept) + f"\n{groups}")
    with (etc / "passwd").open("a") as file:
        file.write(lines)
    for name, text in podman_files(host.directory, host.fake).items():
        (etc / "containers" / name).write_text(text)
    for name, uid in {"root": 0, **USERS}.items():
        (host.directory / "home" / name).mkdir(parents=True)
        os.chown(host.directory / "home" / name, uid, uid)
    _write_commands(host)


def _write_commands(host: Host) -> None:
    binaries, config = host.directory / "bin", host.directory / "config"
    shutil.copytree(Path(gpulease.__file__).parent, host.directory / "client/gpulease")
    binaries.mkdir()
    config.mkdir()
    plugins = str(host.kind.root / "usr/libexec/docker/cli-plugins")
    (config / "config.json").write_text(json.dumps({"cliPluginsExtraDirs": [plugins]}))
    (binaries / "gpulease").write_text(GPULEASE.format(path=f"{host.directory}/client"))
    (binaries / "podman").write_text(PODMAN.format(directory=host.directory))
    for script in ("gpulease", "podman"):
        (binaries / script).chmod(0o755)
    (binaries / "docker").symlink_to(host.kind.root / "usr/bin/docker")


def _remove_cgroups(name: str) -> None:
    """Remove the cgroups that the engine made, in each hierarchy; their processes have ended."""
    for top in (*Path("/sys/fs/cgroup").glob(f"*/{name}"), Path("/sys/fs/cgroup", name)):
        for below in (*sorted(top.rglob("*/"), reverse=True), top):
            with contextlib.suppress(OSError):
                below.rmdir()
