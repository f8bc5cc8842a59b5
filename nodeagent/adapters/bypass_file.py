"""The bypass on record: one small file of root's on a file system that a reboot empties.

It is read by the agent at every look and grant, by Slurm's scripts, by docker's plugin and by gpulease; and
written by root's command, so that it holds whether or not an agent lives.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from nodeagent.adapters.replacing import faults_of, replace
from nodeagent.domain.errors import InvalidField, OutsideFault
from nodeagent.domain.mode import Bypass, bypass_of, text_of

ROOT = Path("/run/nodeagent/bypass")
_MOST_BYTES = 1024
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class BypassFile:
    """The file of the agent instance *stem*. *owner* may write it: root, but in tests."""

    def __init__(self, stem: str, *, root: Path = ROOT, owner: int = 0) -> None:
        self.path = root / stem
        self._owner = owner

    def read(self) -> Bypass | None:
        """What is on record, over or not; None: nothing.

        Raises:
            OutsideFault: somebody else could have written it, or it is no bypass: then nothing is bypassed.
        """
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as fault:
            raise OutsideFault(self.path, f"no bypass: {fault.strerror}") from fault
        with os.fdopen(descriptor, "rb") as file:
            self._check(os.fstat(descriptor), regular=True)
            self._check(self.path.parent.lstat(), regular=False)
            content = file.read(_MOST_BYTES + 1)
        try:
            return bypass_of(content.decode("ascii"))
        except (InvalidField, UnicodeDecodeError) as fault:
            raise OutsideFault(self.path, f"no bypass: {fault}") from None

    def write(self, bypass: Bypass) -> None:
        """Put *bypass* on record, in place of another. Raises OutsideFault."""
        directory = self.path.parent
        with faults_of(self.path):
            for each in (directory.parent, directory):
                with contextlib.suppress(FileExistsError):
                    each.mkdir(mode=0o755)
            self._check(directory.lstat(), regular=False)
            directory.chmod(0o755)  # whatever the umask: tasks of users read it
            replace(self.path, text_of(bypass).encode("ascii"), 0o644)

    def remove(self) -> bool:
        """Whether it was there; gone already is success. Raises OutsideFault."""
        with faults_of(self.path):
            try:
                self.path.unlink()
            except FileNotFoundError:
                return False
        return True

    def _check(self, status: os.stat_result, *, regular: bool) -> None:
        kind = stat.S_ISREG if regular else stat.S_ISDIR
        if not kind(status.st_mode) or status.st_uid != self._owner or status.st_mode & _OTHERS:
            raise OutsideFault(self.path, "no bypass: it and its directory must be root's alone to write")
