"""Which of this node's trees hold devices and kernel interfaces, wherever they are mounted now."""

from __future__ import annotations

import os
from pathlib import Path

from nodeagent.adapters.cgroup_mount import MOUNTINFO, mounts
from nodeagent.domain.docker_paths import CLOSED, CLOSED_TYPES, OPEN, READ_ONLY, Trees

_KINDS = frozenset(kind.encode() for kind in CLOSED_TYPES)


def trees(kept: tuple[str, ...] = (), opened: tuple[str, ...] = (), mountinfo: Path = MOUNTINFO) -> Trees:
    """The closed trees with every mount of such a kind; the site's *kept* and *opened* ones beside ours."""
    mounted = (os.fspath(point) for point, _, _ in mounts(mountinfo.read_bytes(), _KINDS))
    return Trees(
        closed=tuple(dict.fromkeys((*CLOSED, *mounted))),
        read_only=(*READ_ONLY, *kept),
        resolve=os.path.realpath,
        open=(*OPEN, *opened),
    )
