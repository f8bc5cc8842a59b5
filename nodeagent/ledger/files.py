"""Files beside the database: replaced so that power loss leaves one whole, where nobody else may write."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def write_durably(file: Path, text: str) -> None:
    """Replace *file* so that power loss leaves the old or the new content."""
    temporary = file.with_name(f".{file.name}.new")
    descriptor = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    try:
        os.write(descriptor, text.encode("ascii"))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.replace(file)
    sync_directory(file.parent)


def sync_directory(directory: Path) -> None:
    """Make the names in *directory* survive power loss."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def others_may_write(directory: Path) -> bool:
    """Whether *directory* is another user's (root's counts as ours), or lets its group or everyone write."""
    status = directory.stat()
    return status.st_uid not in (0, os.geteuid()) or bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
