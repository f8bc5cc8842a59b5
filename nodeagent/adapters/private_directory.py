"""The agent's own directory: what root reads and writes there must not be another user's to swap."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from nodeagent.domain.errors import OutsideFault


def check_private(directory: Path) -> None:
    """Refuse an existing *directory* into which others could put files or links before or while we use it.

    Raises:
        OutsideFault: another user owns it, or may write there.
    """
    try:
        status = directory.stat()
    except FileNotFoundError:
        return
    if status.st_uid not in (0, os.geteuid()):
        raise OutsideFault(directory, f"belongs to uid {status.st_uid}; name a directory of your own")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OutsideFault(directory, "others can write here: chmod 0700 it, or name another")
