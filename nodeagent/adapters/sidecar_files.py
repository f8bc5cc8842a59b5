"""Sidecars: a JSON file for each live lease on a file system that a reboot empties, root's alone.

No sync: what they are for is a ledger that was lost while the node runs on.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nodeagent.adapters.hook_space import make_own
from nodeagent.adapters.systemcalls import outside_fault
from nodeagent.domain.errors import OutsideFault

ROOT = Path("/run/nodeagent/leases")
MOST_BYTES = 8 << 20
_NAME = re.compile(r"([1-9][0-9]{0,17})\.json", re.ASCII)
_NEW = ".new"


class SidecarFiles:
    """The files of the agent instance whose cgroup subtree is *stem*.slice. All raise OutsideFault."""

    def __init__(self, stem: str, *, root: Path = ROOT) -> None:
        self._root = root
        self._directory = root / stem

    def unavailable(self) -> str | None:
        """Why there are none, or None."""
        return None if os.geteuid() == 0 else "needs root: its file system is for nobody else to write"

    def leases(self) -> frozenset[int]:
        """Those that have a sidecar."""
        if self.unavailable() is not None:
            return frozenset()
        with _named(self._directory), contextlib.suppress(FileNotFoundError):
            found = (_NAME.fullmatch(entry.name) for entry in self._directory.iterdir())
            return frozenset(int(match[1]) for match in found if match)
        return frozenset()

    def path(self, lease: int) -> Path:
        return self._directory / f"{lease:d}.json"

    def read(self, lease: int) -> Any:
        """Whatever the file says: it is not believed yet. Raises FileNotFoundError where there is none."""
        path = self.path(lease)
        with _named(path):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                    raise OutsideFault(path, "is no file of the agent's own")
                content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise OutsideFault(path, f"has more than {MOST_BYTES >> 20} MiB")
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as fault:
            raise OutsideFault(path, f"is no JSON: {fault}") from None

    def write(self, lease: int, content: Mapping[str, Any]) -> None:
        """Replace the file, so that whoever reads it sees the old or the new one."""
        path, text = self.path(lease), json.dumps(content, separators=(",", ":"))
        fresh = path.with_suffix(_NEW)
        with _named(path):
            self._prepare()
            fresh.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(fresh, flags, 0o600), "w", encoding="ascii") as file:
                file.write(text)
            fresh.rename(path)

    def remove(self, lease: int) -> bool:
        """Whether it was there; gone already is success."""
        with _named(self.path(lease)), contextlib.suppress(FileNotFoundError):
            self.path(lease).unlink()
            return True
        return False

    def clear(self) -> None:
        """Take away what a death left half written. Not while anybody writes."""
        with _named(self._directory):
            for left in self._directory.glob(f"*{_NEW}"):
                left.unlink()

    def leave(self) -> None:
        """Take the directories away, if no lease of any agent has a file there."""
        with contextlib.suppress(OSError):
            self.clear()
            self._directory.rmdir()
            self._root.rmdir()
            self._root.parent.rmdir()

    def _prepare(self) -> None:
        if why := self.unavailable():
            raise OutsideFault(self._directory, why)
        make_own(self._root.parent)
        for directory in (self._root, self._directory):
            with contextlib.suppress(FileExistsError):
                directory.mkdir(mode=0o700)
            status = directory.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != 0 or status.st_mode & 0o077:
                raise OutsideFault(directory, "must be a directory of root's that nobody else can enter")


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as fault:
        raise outside_fault(path, fault) from fault
