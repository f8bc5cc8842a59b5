"""Where cgroup2 is mounted. A mount beside version 1 will do: grouping and killing need no controller."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")
_USUAL = Path("/sys/fs/cgroup")


def find_mount(mountinfo: Path = MOUNTINFO) -> Path | None:
    """The cgroup2 mount to work in, as the file *mountinfo* says; None where there is none.

    The usual place comes first, then what lies below it (``unified`` on hybrid nodes), then any other. A
    mount of a subtree does not count: paths in ``/proc/<pid>/cgroup`` would not be paths in it.
    """
    types: dict[Path, tuple[str, bool]] = {}
    for point, kind, whole in mounts(mountinfo.read_bytes()):
        types[point] = (kind, whole)  # a later mount on the same point hides the earlier one
    found = [point for point, (kind, whole) in types.items() if kind == "cgroup2" and whole]
    return min(found, key=_distance, default=None)


def _distance(point: Path) -> int:
    if point == _USUAL:
        return 0
    return 1 if point.is_relative_to(_USUAL) else 2


def mounts(raw: bytes, kinds: Collection[bytes] = ()) -> Iterator[tuple[Path, str, bool]]:
    """Yield (mount point, file system type, whether its root is mounted); proc_pid_mountinfo(5).

    Of the types *kinds* alone where there are any: a node of many containers has thousands of others.
    """
    for line in raw.splitlines():
        left, _, right = line.partition(b" - ")
        fields, kind = left.split(b" "), right.split(b" ")[0]
        if len(fields) >= 5 and kind and (not kinds or kind in kinds):
            yield Path(os.fsdecode(_unescape(fields[4]))), os.fsdecode(kind), fields[3] == b"/"


def _unescape(field: bytes) -> bytes:
    """The kernel writes blank, tab, newline and backslash as three octal digits."""
    return re.sub(rb"\\([0-3][0-7]{2})", lambda match: bytes([int(match[1], 8)]), field)
