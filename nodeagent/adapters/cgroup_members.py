"""Who is in a cgroup, and in those below it."""

from __future__ import annotations

import os
from collections.abc import Collection

from nodeagent.adapters.cgroup_directory import DIRECTORY
from nodeagent.adapters.cgroup_sweep import child_names


def members(directory: int, path: str, without: Collection[str] = ()) -> list[int]:
    """The pids in the open cgroup *directory*, which is *path*, and below it; not below the paths *without*.

    One that is removed meanwhile has nobody. Processes of a foreign pid namespace show as 0 and are left out.
    """
    pids = _pids(directory)
    for name in child_names(directory):
        below = f"{path}/{name}"
        if below in without:
            continue
        try:
            child = os.open(name, DIRECTORY, dir_fd=directory)
        except OSError:
            continue
        try:
            pids += members(child, below, without)
        finally:
            os.close(child)
    return pids


def _pids(directory: int) -> list[int]:
    try:
        descriptor = os.open("cgroup.procs", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        with os.fdopen(descriptor, encoding="ascii") as file:
            return [pid for pid in map(int, file.read().split()) if pid]
    except OSError:
        return []  # removed, or threaded: its processes are listed above it
