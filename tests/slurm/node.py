"""One node of the cluster: its slurmd, and what is its own: device files, places under /run and /etc."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .settings import NodeSettings
from .space import Space, space

# Arguments: the node's name, a directory for its files, the minors of its render nodes. These have the
# numbers of a driver that is not there.
SCRIPT = """
hostname "$1"
dev=$2/dev
mkdir -p "$dev" && mount -t tmpfs -o mode=755 tmpfs "$dev"
for name in null zero full random urandom tty fuse; do
    touch "$dev/$name" && mount --bind "/dev/$name" "$dev/$name"
done
mkdir "$dev/shm" "$dev/dri" && chmod 1777 "$dev/shm"
shift 2
for minor; do mknod -m 666 "$dev/dri/renderD$minor" c 226 "$minor"; done
mount --rbind "$dev" /dev
for place in /run/nodeagent /etc/nodeagent /var/spool; do mount -t tmpfs -o mode=755 tmpfs "$place"; done
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

    def start_slurmd(self) -> None:
        self.space.daemon("slurmd", "-N", self.name)

    def stop_slurmd(self, signal: str = "TERM") -> None:
        """Send slurmd a signal that ends it; the jobs' own daemons live on."""
        pid = self.path(f"/run/slurmd-{self.name}.pid").read_text().strip()
        self.space.run("kill", "-s", signal, pid)
        self.space.run("timeout", "20", "tail", "--pid", pid, "-f", "/dev/null")


@contextlib.contextmanager
def running_node(settings: NodeSettings, head: Space, directory: Path) -> Iterator[Node]:
    """A node whose slurmd runs."""
    directory.mkdir(mode=0o755)
    minors = map(str, settings.minors)
    with space(SCRIPT, settings.name, str(directory), *minors, within=head) as own:
        node = Node(settings, own, directory)
        node.start_slurmd()
        yield node
