"""Processes in containers: in which, as a cgroup's name says; of which lease, as their mounts prove.

An engine that starts a container of a lease mounts the lease's note into it. The note lies where root alone
can go, so whoever has it among their mounts was given it by root, or inherited it. Labels are only hints.
It counts at its own place alone: for `docker cp` docker before 24 mounts it below the container's files in
the node's own namespace, too, where every process of the node has it among its mounts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from nodeagent.adapters.processes import PROC, every_pid
from nodeagent.domain.container import NOTE

# docker-<id>.scope, libpod-<id>.scope, cri-containerd-<id>.scope, or the bare id.
_CONTAINER = re.compile(r"(?:^|[/:-])([0-9a-f]{64})(?:\.scope)?(?=/|$)", re.ASCII | re.MULTILINE)
Place = tuple[int, int | None]  # a lease, and the guest in it where the container is one
_DELETED = "//deleted"  # what the kernel appends to the root of a mount whose file has no name any more


def container_of(pid: int, proc: Path = PROC) -> str | None:
    """The container in which *pid* is, by its cgroup's name: for people, and to ask an engine about."""
    named: list[str] = _CONTAINER.findall(_read(proc / str(pid) / "cgroup"))
    return named[-1] if named else None  # containers nest


@dataclass(frozen=True, slots=True)
class _Mount:
    """One line of mountinfo (proc_pid_mountinfo(5)): the file system, and what of it is mounted where."""

    device: str
    root: str
    point: str


class LeaseMounts:
    """The notes below *notes*, ``<lease>/lease`` or a guest's ``<lease>/<guest>/lease``, among mounts."""

    def __init__(self, notes: Path, *, proc: Path = PROC) -> None:
        self._notes = notes
        self._proc = proc

    def of(self, pid: int) -> int | None:
        """The lease whose note is mounted where *pid* lives."""
        note = self._note()
        place = None if note is None else self._place(pid, note)
        return None if place is None else place[0]

    def processes(self) -> Mapping[int, int]:
        """The lease of each process that has one, by pid."""
        return {pid: lease for pid, (lease, _) in self.places().items()}

    def places(self) -> Mapping[int, Place]:
        """The lease of each process that has one, and the guest in it. Each mount namespace is read once."""
        note = self._note()
        found: dict[int, Place] = {}
        namespaces: dict[str, Place | None] = {}
        for pid in every_pid(self._proc) if note is not None else ():
            namespace = _namespace(self._proc / str(pid) / "ns" / "mnt")
            if namespace is None or note is None:
                continue
            if namespace not in namespaces:
                namespaces[namespace] = self._place(pid, note)
            place = namespaces[namespace]
            if place is not None:
                found[pid] = place
        return found

    def _note(self) -> tuple[str, re.Pattern[str]] | None:
        """The file system on which the notes lie, and what their paths on it look like."""
        within = [
            mount
            for mount in _mounts(self._proc / "self" / "mountinfo")
            if mount.point == "/" or f"{self._notes}/".startswith(f"{mount.point}/")
        ]
        if not within or not self._notes.is_dir():
            return None
        mount = max(within, key=lambda one: len(one.point.rstrip("/")))
        inner = os.path.relpath(self._notes, mount.point)
        path = re.escape(f"{mount.root.rstrip('/')}/{inner}")
        return mount.device, re.compile(
            rf"{path}/([1-9][0-9]{{0,17}})(?:/([1-9][0-9]{{0,17}}))?/lease", re.ASCII
        )

    def _place(self, pid: int, note: tuple[str, re.Pattern[str]]) -> Place | None:
        device, pattern = note
        for mount in _mounts(self._proc / str(pid) / "mountinfo"):
            match = pattern.fullmatch(mount.root.removesuffix(_DELETED))
            if match and mount.device == device and mount.point == NOTE:
                return int(match[1]), int(match[2]) if match[2] else None
        return None


def _mounts(path: Path) -> Iterator[_Mount]:
    for line in _read(path).splitlines():
        fields = line.split(" ", 5)
        if len(fields) == 6:
            yield _Mount(fields[2], fields[3], fields[4])


def _namespace(path: Path) -> str | None:
    try:
        return str(path.readlink())
    except OSError:
        return None


def _read(path: Path) -> str:
    """What it says; nothing of a process that is gone, or that the agent may not look at."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def in_container_of(pid: int, first: int, container: str, proc: Path = PROC) -> bool:
    """Whether *pid* is in the cgroup, named for *container*, that the process *first* is in, or below it."""
    named = [line for line in _read(proc / str(first) / "cgroup").splitlines() if container in line]
    own = _read(proc / str(pid) / "cgroup").splitlines()
    return any(f"{line}/".startswith(f"{one}/") for one in named for line in own)
