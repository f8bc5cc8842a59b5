"""CDI files, one for each lease that is a CDI device: engines find them by themselves, and forget those gone.

The file is the only place where the device's name stands, and root alone may read it: docker's daemon and
podman as root do. Whoever may ask docker sees the name in ``docker info``; see docs/cdi.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nodeagent.adapters.hook_space import make_own
from nodeagent.adapters.hook_usage import fresh
from nodeagent.adapters.replacing import faults_of, replace
from nodeagent.domain.cdi import NAME, qualified, specification
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.offer import Offer

_MODE = 0o600
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class CdiFiles:
    """The files of the agent instance whose cgroup subtree is *stem*.slice. All raise OutsideFault."""

    def __init__(self, stem: str, directory: Path) -> None:
        self._stem = stem
        self._directory = directory
        self._name = re.compile(rf"nodeagent-{re.escape(stem)}-([1-9][0-9]{{0,17}})\.json", re.ASCII)

    def unavailable(self) -> str | None:
        """Why there are none, or None."""
        return None if os.geteuid() == 0 else "needs root: an engine believes what it reads there"

    def path(self, lease: int) -> Path:
        return self._directory / f"nodeagent-{self._stem}-{lease:d}.json"

    def write(self, lease: int, offer: Offer) -> str:
        """Make the lease a device, or put its file right; the digest of the device's name."""
        path = self.path(lease)
        with faults_of(path):
            self._prepare()
            name = self._name_in(self._read(lease)) or secrets.token_hex(16)
            replace(path, _text(name, offer), _MODE)
        return digest(name)

    def verify(self, lease: int, offer: Offer, named: str) -> None:
        """Read the file back: as `write` leaves it, with the device whose digest is *named*."""
        path = self.path(lease)
        with faults_of(path):
            status = path.lstat()
            name = self._name_in(self._read(lease))
            if name is None or digest(name) != named or path.read_bytes() != _text(name, offer):
                raise OutsideFault(path, "reads otherwise than it was written")
            if status.st_uid != 0 or status.st_mode != stat.S_IFREG | _MODE:
                raise OutsideFault(path, "is not root's alone, so others may read the name of the device")

    def device(self, lease: int) -> str | None:
        """What ``--device`` takes; None where the lease is no device, or its file cannot be read."""
        with contextlib.suppress(OSError):
            name = self._name_in(self._read(lease))
            return None if name is None else qualified(name)
        return None

    def leases(self) -> frozenset[int]:
        """Those that have a file, a half made one of a crash too."""
        with faults_of(self._directory), contextlib.suppress(FileNotFoundError):
            names = (entry.name.removesuffix(fresh("")) for entry in self._directory.iterdir())
            found = (self._name.fullmatch(name) for name in names)
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

    def _read(self, lease: int) -> Any:
        try:
            descriptor = os.open(self.path(lease), _READ)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            try:
                return json.load(file)
            except ValueError:
                return None

    @staticmethod
    def _name_in(content: Any) -> str | None:
        match content:
            case {"devices": [{"name": str(name)}]} if NAME.fullmatch(name):
                return name
        return None


def digest(name: str) -> str:
    """What may be written down of a device's *name*."""
    return hashlib.sha256(name.encode()).hexdigest()


def _text(name: str, offer: Offer) -> bytes:
    content: Mapping[str, Any] = specification(name, offer)
    return (json.dumps(content, indent=1) + "\n").encode("ascii")
