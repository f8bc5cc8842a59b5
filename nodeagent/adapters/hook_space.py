"""Where usage files lie: small file systems, each one user's at a time.

A holder may make its own file grow, and keep it open when the lease has ended and its name is gone. So nobody
else's may lie on the same file system: its holder would decide whether others get a lease (threat 13).
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from nodeagent.adapters.launcher import HERE, Launcher
from nodeagent.domain.errors import OutsideFault

# Mounted before anybody comes: a mount that is made later is not seen in mount namespaces that exist by then.
READY = 8
MOST = 128  # users beyond that share: somebody with countless uids must not make countless mounts
PRIVATE = ".private"
# 4 KiB and 4 KiB a device for each lease: two hundred leases of whole nodes.
_OPTIONS = "mode=0711,size=16m,nr_inodes=2048"


class UsageSpace:
    """The file systems *root*/0, *root*/1 and so on, shared by all instances of the agent. Raises OSError.

    A file of root's in each, ``.UID``, says whose it is: for as long as anything else is in it, named or not.
    Files that containers write lie in a directory of their own in it, which nobody but root can enter: a
    container's programs may write them whatever their uid, and nobody else.
    """

    def __init__(self, root: Path, launcher: Launcher = HERE) -> None:
        self._root = root
        self._launcher = launcher

    def prepare(self) -> None:
        """Make and mount those that shall be there; again is harmless."""
        make_own(self._root)
        self._mount([self._root / str(number) for number in range(READY)])

    def directory_of(self, uid: int) -> Path:
        """Where a file of *uid*'s goes: into its own, else into one that is nobody's any more."""
        spaces = self._spaces()
        for space in spaces:
            if (space / f".{uid:d}").exists():
                return space
        free = next(filter(_is_free, spaces), None)
        if free is None and len(spaces) >= MOST:
            return spaces[uid % len(spaces)]
        space = free or self._mounted(len(spaces))
        for former in space.iterdir():
            former.rmdir() if former.name == PRIVATE else former.unlink()
        (space / f".{uid:d}").touch(mode=0o600)
        return space

    def private_directory_of(self, uid: int) -> Path:
        """Where a file of *uid*'s goes that the programs in its container write."""
        private = self.directory_of(uid) / PRIVATE
        private.mkdir(mode=0o700, exist_ok=True)
        private.chmod(0o700)
        return private

    def files(self, name: str) -> list[Path]:
        """The files of that name: one, unless a crash left another."""
        return [path for directory in self._directories() if os.path.lexists(path := directory / name)]

    def names(self, prefix: str) -> list[str]:
        """The names of all files that begin with *prefix*."""
        return [
            entry.name
            for directory in self._directories()
            for entry in directory.iterdir()
            if entry.name.startswith(prefix)
        ]

    def leave(self) -> None:
        """Take away what nobody uses, the root too if that is all."""
        spaces = self._spaces()
        with contextlib.suppress(OSError):
            self._launcher.unmount([space for space in spaces if space.is_mount() and _is_free(space)])
        for space in spaces:
            with contextlib.suppress(OSError):
                space.rmdir()
        with contextlib.suppress(OSError):
            self._root.rmdir()

    def _spaces(self) -> list[Path]:
        with contextlib.suppress(FileNotFoundError):
            found = [entry for entry in self._root.iterdir() if entry.name.isdecimal()]
            return sorted(found, key=lambda entry: int(entry.name))
        return []

    def _directories(self) -> list[Path]:
        """Where files lie: each space, and what is private in it."""
        spaces = self._spaces()
        return [*spaces, *(private for space in spaces if (private := space / PRIVATE).is_dir())]

    def _mounted(self, number: int) -> Path:
        space = self._root / str(number)
        self._mount([space])
        return space

    def _mount(self, spaces: Sequence[Path]) -> None:
        around = os.lstat(self._root).st_dev
        if bare := [space for space in spaces if make_own(space).st_dev == around]:
            self._launcher.mount(_OPTIONS, bare)


def make_own(directory: Path) -> os.stat_result:
    """Make *directory* unless it is there. Raises OutsideFault where others could put things into it."""
    try:
        status = os.lstat(directory)
    except FileNotFoundError:
        directory.mkdir(mode=0o711, exist_ok=True)
        status = os.lstat(directory)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != 0 or status.st_mode & 0o022:
        raise OutsideFault(directory, "must be a directory of root's that nobody else can write")
    return status


def _is_free(space: Path) -> bool:
    """Whether there is no usage file in it: one without a name that is still open counts as well."""
    told = os.statvfs(space)
    mark = [entry for entry in space.iterdir() if entry.name.startswith(".")]
    return told.f_files - told.f_ffree == 1 + len(mark)  # its root directory, and these
