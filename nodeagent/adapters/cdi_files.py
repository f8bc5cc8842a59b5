"""CDI files, one for each lease that is a CDI device: engines find them by themselves, and forget those gone.

Root alone may read one, for the name of the device stands in it: docker's daemon and podman as root do.
Whoever may ask docker sees the name in ``docker info``, too: see docs/cdi.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nodeagent.adapters.hook_space import make_own
from nodeagent.adapters.hook_usage import fresh
from nodeagent.adapters.replacing import faults_of, replace
from nodeagent.domain.cdi import specification
from nodeagent.domain.errors import OutsideFault

_MODE = 0o600


class CdiFiles:
    """The files of the agent instance whose cgroup subtree is *stem*.slice. All raise OutsideFault."""

    def __init__(self, stem: str, directory: Path) -> None:
        self._stem = stem
        self._directory = directory
        self._file = re.compile(rf"nodeagent-{re.escape(stem)}-([1-9][0-9]{{0,17}})\.json", re.ASCII)

    def unavailable(self) -> str | None:
        """Why there are none, or None."""
        return None if os.geteuid() == 0 else "needs root: an engine believes what it reads there"

    def path(self, lease: int) -> Path:
        return self._directory / f"nodeagent-{self._stem}-{lease:d}.json"

    def write(self, lease: int, name: str, edits: Mapping[str, Any]) -> None:
        """Make the lease the device *name*, which gives a container *edits*, and read that back."""
        path, content = self.path(lease), _text(name, edits)
        with faults_of(path):
            self._prepare()
            replace(path, content, _MODE)
            status = path.lstat()
            if path.read_bytes() != content or status.st_mode != stat.S_IFREG | _MODE:
                raise OutsideFault(path, "is otherwise than it was written")

    def leases(self) -> frozenset[int]:
        """Those that have a file, a half made one of a crash too."""
        with faults_of(self._directory), contextlib.suppress(FileNotFoundError):
            names = (entry.name.removesuffix(fresh("")) for entry in self._directory.iterdir())
            found = (self._file.fullmatch(name) for name in names)
            return frozenset(int(match[1]) for match in found if match)
        return frozenset()

    def remove(self, lease: int) -> None:
        """Revoke the device: gone already is success."""
        path = self.path(lease)
        with faults_of(path):
            for gone in (path, path.with_name(fresh(path.name))):
                gone.unlink(missing_ok=True)

    def _prepare(self) -> None:
        if why := self.unavailable():
            raise OutsideFault(self._directory, why)
        with contextlib.suppress(FileExistsError):
            self._directory.mkdir(mode=0o755)
            self._directory.chmod(0o755)  # whatever the umask: others' devices lie there, too
        make_own(self._directory)


def _text(name: str, edits: Mapping[str, Any]) -> bytes:
    return (json.dumps(specification(name, edits), indent=1) + "\n").encode("ascii")
