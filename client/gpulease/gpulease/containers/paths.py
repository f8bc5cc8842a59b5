"""Which host paths a container must not be given: those that lead past its lease."""

from __future__ import annotations

import os
import posixpath
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Optional

_DRM_MAJOR = 226  # include/drm/drm_file.h
_KFD = "/dev/kfd"
_GPU_NODES = ("/dev/dri", _KFD)
# A container that has one of these, what is below it, or a directory above it, is not held.
_NEVER = {
    "/dev/dri": "all of the node's GPUs",
    "/dev/kfd": "all of the node's GPUs",
    "/sys/fs/cgroup": "the limits of every lease",
    "/run/nodeagent": "the agent's own files",
}
# File systems of the kernel's: a part may be shown to a container, but not be written by it.
_ONLY_SHOWN = {"/proc": "every process of the node", "/sys": "the settings of the node's GPUs"}
_OF_A_PROCESS = r"/proc/([0-9]+|self|thread-self)(/|$)"
# Where the lease's own files go in a container.
_TAKEN = ("/etc/gpulease", "/etc/ld.so.preload", "/run/gpulease", "/usr/lib/gpulease", *_GPU_NODES)


def leads_past(path: str, read_only: bool = False) -> Optional[str]:
    """What a container would reach by the host's *path* that is not its own; None if nothing."""
    return next(filter(None, (_reached(one, read_only) for one in _names(path))), None)


def is_taken(target: str) -> bool:
    """Whether a lease puts a file of its own at *target*, or above it."""
    name = _plain(target)
    return any(_is_in(name, taken) for taken in _TAKEN)


def is_gpu_node(path: str) -> bool:
    """Whether *path* is a GPU's device, or a directory of such, by name, through links or by number."""
    names = list(_names(path))
    if any(_is_in(name, node) or _is_in(node, name) for name in names for node in _GPU_NODES):
        return True
    number = _number(path)
    return number is not None and (os.major(number) == _DRM_MAJOR or number == _number(_KFD))


def gpu_majors() -> set[int]:
    """The major numbers of GPU devices; KFD's differs from boot to boot."""
    kfd = _number(_KFD)
    return {_DRM_MAJOR} if kfd is None else {_DRM_MAJOR, os.major(kfd)}


def _number(path: str) -> Optional[int]:
    """The device that a character device file stands for."""
    with suppress(OSError, ValueError):
        found = Path(path).stat()
        return found.st_rdev if stat.S_ISCHR(found.st_mode) else None
    return None


def _names(path: str) -> Iterator[str]:
    """*path* as written, and as it is behind its links where we may follow them."""
    yield _plain(path)
    with suppress(OSError, ValueError):
        yield _plain(os.path.realpath(path))


def _plain(path: str) -> str:
    return posixpath.normpath(f"/{path.lstrip('/')}")


def _reached(name: str, read_only: bool) -> Optional[str]:
    if re.match(_OF_A_PROCESS, name):
        return "another view of the node's files"
    for never, what in _NEVER.items():
        if _is_in(name, never) or _is_in(never, name):
            return what
    for shown, what in _ONLY_SHOWN.items():
        if name == shown or (_is_in(name, shown) and not read_only):
            return what
    return None


def _is_in(name: str, directory: str) -> bool:
    return name == directory or name.startswith(directory.rstrip("/") + "/")
