"""Who has a device node or a dma-buf open, by the descriptors and mappings of all processes.

A process that is stuck in a driver, or that holds up who reads its mappings (Linux before 6.17), holds up the
look: see `nodeagent.adapters.bounded`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from nodeagent.adapters.acl import DeviceNode
from nodeagent.adapters.processes import PROC, every_pid

_DMA_BUF = re.compile(r"/dmabuf:.*")


def users_of(node: DeviceNode, proc: Path = PROC) -> tuple[int, ...]:
    """The pids that have *node* open or mapped, found by the name of the file and its device number."""
    return tuple(pid for pid in every_pid(proc) if _uses(proc / str(pid), node))


def dma_buf_holders(proc: Path = PROC) -> tuple[int, ...]:
    """The pids that have a dma-buf open; it does not tell whose memory it is, and may be mapped alone."""
    return tuple(pid for pid in every_pid(proc) if _has_dma_buf(proc / str(pid)))


def _uses(process: Path, node: DeviceNode) -> bool:
    try:
        # A mapping keeps the file open after its descriptor is closed.
        return any(_is(link, node) for link in (*(process / "fd").iterdir(), *_mappings(process, node)))
    except OSError:
        return False  # it ended


def _has_dma_buf(process: Path) -> bool:
    try:
        return any(_DMA_BUF.fullmatch(str(link.readlink())) for link in (process / "fd").iterdir())
    except OSError:
        return False  # it ended


def _mappings(process: Path, node: DeviceNode) -> Iterator[Path]:
    """Links to the files that *process* has mapped under the node's name; needs root's own rights."""
    maps = (process / "maps").read_text(encoding="utf-8", errors="replace")
    for line in maps.splitlines():
        if _name(line) == node.path.name:
            start, end = (int(address, 16) for address in line.split(maxsplit=1)[0].split("-"))
            yield process / "map_files" / f"{start:x}-{end:x}"


def _is(link: Path, node: DeviceNode) -> bool:
    try:
        # By name first: to stat a file on a user's file system may wait for ever.
        if _name(str(link.readlink())) != node.path.name:
            return False
        return link.stat().st_rdev == os.makedev(node.major, node.minor)
    except OSError:
        return False


def _name(path: str) -> str:
    """The last part of *path*; udev may have made the node anew since it was opened."""
    return path.removesuffix(" (deleted)").rpartition("/")[2]
