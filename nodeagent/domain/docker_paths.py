"""Which of the host's paths a container may have bound into it.

A path is refused that is, contains or leads to a closed tree: those with devices, kernel interfaces, sockets
and secrets. What decides who gets a GPU (docker's and the agent's own files) may be bound read-only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# The agent's own state beside them: who reads its key knows the tickets of all leases.
CLOSED = ("/dev", "/proc", "/run", "/sys", "/var/lib/nodeagent", "/var/run")
OPEN = ("/dev/shm", "/dev/null", "/dev/random", "/dev/urandom", "/dev/zero")  # noqa: S108 - no temporary file
READ_ONLY = (
    "/etc/cdi",
    "/etc/docker",
    "/etc/gpulease",
    "/etc/ld.so.preload",
    "/etc/nodeagent",
    "/etc/systemd",
    "/etc/udev",
    "/usr/lib/gpulease",
    "/usr/libexec/nodeagent",
    "/var/lib/containerd",
    "/var/lib/docker",
)
# File systems that are devices or the kernel's own interfaces wherever they are mounted.
CLOSED_TYPES = frozenset(
    (
        "bpf",
        "cgroup",
        "cgroup2",
        "configfs",
        "debugfs",
        "devtmpfs",
        "efivarfs",
        "proc",
        "securityfs",
        "sysfs",
        "tracefs",
    )
)


@dataclass(frozen=True, slots=True)
class Trees:
    """The node's trees, canonical paths all; *open* ones may lie in closed ones. *resolve* follows links."""

    closed: tuple[str, ...]
    read_only: tuple[str, ...]
    resolve: Callable[[str], str]
    open: tuple[str, ...] = OPEN

    def why_not(self, source: str, *, read_only: bool) -> str | None:
        """Why *source* may not be bound; None where it may.

        It is judged as written and as it resolves now. Who can change a part of it later can make it lead
        elsewhere: no plugin can hold that.
        """
        if ".." in source.split("/"):
            return f"write the path {source[:80]!r} without `..`"
        path = canonical(source)
        for seen in dict.fromkeys((path, self.resolve(path))):
            if any(within(seen, tree) for tree in self.open):
                continue
            if any(touch(seen, tree) for tree in self.closed):
                return f"{source[:80]!r} is, contains or leads to devices, interfaces or keys of the node"
            if not read_only and any(touch(seen, tree) for tree in self.read_only):
                return f"{source[:80]!r} holds what decides who gets a GPU: bind it read-only"
        return None


def canonical(path: str) -> str:
    """An absolute *path* without empty parts and ``.``, as docker cleans it."""
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def within(path: str, tree: str) -> bool:
    """Whether canonical *path* is *tree* or below it."""
    return path == tree or path.startswith(tree.rstrip("/") + "/")


def touch(path: str, tree: str) -> bool:
    """Whether one of two canonical paths lies in the other."""
    return within(path, tree) or within(tree, path)
