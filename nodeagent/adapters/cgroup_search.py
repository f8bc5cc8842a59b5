"""Looks for cgroups by their names through a whole cgroup2 mount, as far as a bound."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path

MOST = 100_000  # cgroups that are looked at; a node with a thousand containers has a tenth


def all_paths(mount: Path, most: int = MOST) -> Iterator[str]:
    """The paths of the cgroups below *mount*, nearest to the root first; the first *most* of them.

    One that is removed meanwhile, or that nobody may look into, has none below it.
    """
    waiting, left = deque([""]), most
    while waiting:
        above = waiting.popleft()
        for name in _names(mount / above[1:]):
            if left == 0:
                return
            left -= 1
            waiting.append(f"{above}/{name}")
            yield waiting[-1]


def _names(directory: Path) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []
