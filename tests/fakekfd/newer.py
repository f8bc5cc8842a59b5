"""The root directory of a later Debian release, with its ROCm and docker, that the script `chroot` makes."""

from __future__ import annotations

import os
from pathlib import Path


def newer_root() -> Path | None:
    """Where it is, if somebody made it (make test-rocm and make test-docker do)."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    root = Path(os.environ.get("NODEAGENT_CACHE") or Path(cache) / "nodeagent") / "rocm-chroot"
    return root if (root / ".nodeagent-chroot").exists() else None
