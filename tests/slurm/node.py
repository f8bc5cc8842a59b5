"""One node of the cluster: its slurmd, and what is its own: device files, places under /run and /etc."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .settings import SCRIPTS, NodeSettings
from .space import ROOT, SECONDS, Space, space

STARTED = "slurmd started on"
# The first argument is the node's name.
PLACES = """
hostname "$1"
for place in /run/nodeagent /etc/nodeagent /var/spool; do mount -t tmpfs -o mode=755 tmpfs "$place"; done
"""
# A /dev without GPUs. The second argument is a directory for it.
NO_DEVICES = """
dev=$2
mkdir "$dev" && mount -t tmpfs -o mode=755 tmpfs "$dev"
for name in null zero full random urandom tty fuse; do
    touch "$dev/$name" && mount --bind "/dev/$name" "$dev/$name"
done
mkdir "$dev/shm" "$dev/dri" && chmod 1777 "$dev/shm"
mount --rbind "$dev" /dev
"""
# The arguments from the third on: minors of render nodes. Their numbers are of a driver that is not there.
RENDERS = """
shift 2
mount -t tmpfs -o mode=755 tmpfs /dev/dri
for minor; do mknod -m 666 "/dev/dri/renderD$minor" c 226 "$minor"; done
"""


@dataclass(frozen=True)
class Node:
    """A node in a space of its own."""

    settings: NodeSettings
    space: Space
    directory: Path

    @property
    def name(self) -> str:
        return self.settings.name

    def path(self, absolute: str) -> Path:
        """A file of the node's, as seen from outside."""
        return self.space.root / absolute.lstrip("/")

    def log(self) -> str:
        """What slurmd has said."""
        log = self.directory.parent / f"log/{self.name}.log"
        return log.read_text() if log.exists() else ""

    def script(self, name: str, environment: dict[str, str]) -> int:
        """Run one of Slurm's scripts as slurmd does, with nothing else in its environment; its exit code."""
        words = [f"{name}={value}" for name, value in environment.items()]
        return self.space.run("env", "-i", *words, f"{SCRIPTS}/{name}").returncode

    def runs(self, script: str) -> bool:
        """Whether one of Slurm's scripts runs now."""
        return self.space.run("pgrep", "-f", f"{SCRIPTS}/{script}$").returncode == 0

    def start_slurmd(self, *options: str) -> None:
        """Start it; newer ones are in the background before they have read anything."""
        seen = self.log().count(STARTED)
        self.space.daemon("slurmd", "-N", self.name, *options)
        deadline = time.monotonic() + SECONDS
        while self.log().count(STARTED) == seen:
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.02)

    def stop_slurmd(self, signal: str = "TERM") -> None:
        """Send slurmd a signal that ends it; the jobs' own daemons live on."""
        pid = self.path(f"/run/slurmd-{self.name}.pid").read_text().strip()
        self.space.run("kill", "-s", signal, pid)
        self.space.run("timeout", "20", "tail", "--pid", pid, "-f", "/dev/null")


@contextlib.contextmanager
def running_node(settings: NodeSettings, head: Space, directory: Path) -> Iterator[Node]:
    """A node whose slurmd runs."""
    directory.mkdir(mode=0o755)
    script = PLACES + NO_DEVICES + RENDERS
    with space(script, *_words(settings, directory), before=head.command(pids=False)) as own:
        node = Node(settings, own, directory)
        node.start_slurmd()
        yield node


@contextlib.contextmanager
def running_fake(settings: NodeSettings, head: Space, directory: Path) -> Iterator[Node]:
    """The same with GPUs of the fake kernel's, whose state is at the socket `kernel` of the directory.

    It has the head's processes: the kernel's lists of pids and the agent's must agree. slurmd takes no files
    that are not devices, as the fake's; it looks at them when it starts.
    """
    directory.mkdir(mode=0o755)
    fake = (sys.executable, "-m", "tests.fakekfd", "--gpus", str(len(settings.minors)))
    before = head.command(*fake, "--socket", str(directory / "kernel"), "--", at=str(ROOT))
    with space(PLACES + RENDERS, *_words(settings, directory), own=(), before=before) as own:
        node = Node(settings, own, directory)
        node.start_slurmd()
        own.run("umount", "/dev/dri")
        yield node
        node.stop_slurmd()


def _words(settings: NodeSettings, directory: Path) -> tuple[str, ...]:
    return settings.name, str(directory / "dev"), *map(str, settings.minors)
