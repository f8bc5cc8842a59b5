"""The hook's two files of each lease: limits that only root writes, and usage that only the holder does.

They are separate because nobody may change a limit.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import shutil
import stat
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from nodeagent.adapters.hook_format import HookDevice, limits_bytes, usage_path
from nodeagent.adapters.hook_space import UsageSpace, make_own
from nodeagent.adapters.hook_usage import CONTAINERS, HOLDERS, Usage, UsageFile, fresh
from nodeagent.adapters.launcher import HERE, Launcher
from nodeagent.adapters.lease_names import leases_of
from nodeagent.adapters.replacing import replace
from nodeagent.adapters.systemcalls import outside_fault
from nodeagent.domain import container
from nodeagent.domain.errors import OutsideFault

# Compiled into the hook too: a program cannot be told to look elsewhere.
ROOT = Path("/run/nodeagent/hook")
LIBRARY = Path(__file__).parent.parent / "hook" / "libgpulease.so"

_LIMITS_MODE = 0o444
_PRELOADABLE = re.compile(
    r"[\w./+@=,-]+", re.ASCII
)  # LD_PRELOAD is split at spaces and colons, and expands $


class HookFiles:
    """The files below *root* of the agent instance whose cgroup subtree is *stem*.slice."""

    def __init__(
        self, stem: str, *, root: Path = ROOT, library: Path = LIBRARY, launcher: Launcher = HERE
    ) -> None:
        self._library = library
        self._public: Path | None = None
        self._found: tuple[str | None] | None = None  # by the last probe
        self._root = root
        self._limits = root / stem
        self._stem = stem
        self._space = UsageSpace(root / "usage", launcher)
        self._placing = threading.Lock()  # two at a time would mount twice, or be given the same file system

    def unavailable(self) -> str | None:
        """Why no process can be hooked here, or None: what the last `probe` found."""
        if self._found is None:
            self.probe()
        return self._found[0] if self._found else None

    def probe(self) -> None:
        """Look whether processes can be hooked here. Makes the directories: less proves nothing.

        Done at the start and at each look of the reconciler, so that no grant touches the file system for it.
        """
        self._found = (self._look(),)

    def _look(self) -> str | None:
        if platform.machine() != "x86_64":
            return f"the hook is built for x86_64 only, and this is {platform.machine()}"
        if not self._library.is_file():
            return f"{self._library}: {self._why_not_built()}"
        if os.geteuid() != 0:
            return "needs root: the hook believes only files that root owns"
        try:
            self._open_directories()
            library = self.library()
        except OutsideFault as fault:
            return str(fault)
        if os.statvfs(library).f_flag & os.ST_NOEXEC:
            return (
                f"{library}: on a file system that is mounted noexec; install nodeagent where all can read it"
            )
        return None

    def library(self) -> Path:
        """The library where every user can load it: as installed, or a copy where others could not.

        A copy is named by its content, so that one in use is never replaced. Raises OutsideFault.
        """
        if self._public is None or not self._public.is_file():
            others_can_go = all(parent.stat().st_mode & stat.S_IXOTH for parent in self._library.parents)
            others_can_load = others_can_go and self._library.stat().st_mode & stat.S_IROTH
            fits = _PRELOADABLE.fullmatch(str(self._library))
            self._public = self._library if others_can_load and fits else self._copied()
        return self._public

    def limits_path(self, lease_id: int) -> Path:
        return self._limits / f"{lease_id:d}" / "limits"

    def preload_path(self, lease_id: int) -> Path:
        """The ``ld.so.preload`` of a container's lease."""
        return self.limits_path(lease_id).with_name("ld.so.preload")

    def guests_limits_path(self, lease_id: int) -> Path:
        """The limits as containers read them that run in the lease beside its other programs."""
        return self.limits_path(lease_id).with_name("limits.guests")

    def prepare(
        self, lease_id: int, uid: int, devices: Sequence[HookDevice], *, strict: bool, contained: bool = False
    ) -> Path:
        """Make both files of a lease, or put them right; it never clears what is in use already.

        *contained*: they are for a container, where other paths lead to them. Returns the path of the limits.
        Raises OutsideFault naming the path.
        """
        self._open_directories()
        with self._placing, _named(self._root):
            usage = self._usage(self._place(lease_id, uid, contained), lease_id, uid, len(devices), contained)
            usage.keep()
        path = self.limits_path(lease_id)
        with _named(path):
            path.parent.mkdir(mode=0o711, exist_ok=True)
            path.parent.chmod(0o711)
            said = container.USAGE if contained else str(usage.path)
            replace(path, limits_bytes(lease_id, devices, said, strict=strict), _LIMITS_MODE)
            if contained:
                replace(self.preload_path(lease_id), f"{container.LIBRARY}\n".encode(), _LIMITS_MODE)
        return path

    def let_guests_in(self, lease_id: int, devices: Sequence[HookDevice]) -> None:
        """Make what containers mount that count together with the lease's other programs; again is harmless.

        They are strict: one whose uid cannot write the lease's usage file gets nothing. Raises OutsideFault.
        """
        path = self.guests_limits_path(lease_id)
        with _named(path):
            replace(path, limits_bytes(lease_id, devices, container.USAGE, strict=True), _LIMITS_MODE)
            replace(self.preload_path(lease_id), f"{container.LIBRARY}\n".encode(), _LIMITS_MODE)

    def verify(
        self, lease_id: int, uid: int, devices: Sequence[HookDevice], *, strict: bool, contained: bool = False
    ) -> None:
        """Read both files back. Raises OutsideFault where one is not as `prepare` leaves it."""
        path = self.limits_path(lease_id)
        with _named(path):
            usage = self._usage(self.usage_path(lease_id), lease_id, uid, len(devices), contained)
            said = container.USAGE if contained else str(usage.path)
            wanted = limits_bytes(lease_id, devices, said, strict=strict)
            if path.read_bytes() != wanted:
                raise OutsideFault(path, "reads otherwise than it was written")
            status = path.lstat()
            if status.st_uid != 0 or status.st_mode != stat.S_IFREG | _LIMITS_MODE:
                raise OutsideFault(path, "is not root's alone to write, so the hook would not believe it")
        with _named(usage.path):
            if usage.path not in self._space.files(self._name(lease_id)):
                raise OutsideFault(usage.path, "is missing")
            usage.check()

    def usage(self, lease_id: int, devices: int) -> Usage:
        """What the lease's living processes say they use: for people to look at, it decides nothing.

        Raises OutsideFault where the file was tampered with so that it cannot be read.
        """
        with _named(self.limits_path(lease_id)):
            return UsageFile(self.usage_path(lease_id), lease_id, 0, devices).read()

    def usage_path(self, lease_id: int) -> Path:
        """As the limits say. Raises OSError where there are none, OutsideFault where they are damaged."""
        path = self.limits_path(lease_id)
        try:
            said = usage_path(path.read_bytes())
        except ValueError as fault:
            raise OutsideFault(path, f"is no limits file: {fault}") from None
        if said != container.USAGE:
            return Path(said)
        there = self._space.files(self._name(lease_id))
        if not there:
            raise OutsideFault(path, "its usage file is missing")
        return there[0]

    def leases(self) -> frozenset[int]:
        """The leases of which there is a file, a half made one too, or the directory. Raises OutsideFault."""
        if os.geteuid() != 0:
            return frozenset()  # nobody else makes any
        with _named(self._root):
            names = [
                name.removeprefix(f"{self._stem}-").removesuffix(fresh(""))
                for name in self._space.names(f"{self._stem}-")
            ]
            with contextlib.suppress(FileNotFoundError):
                names += [entry.name for entry in self._limits.iterdir()]
        return leases_of(names)

    def remove(self, lease_id: int) -> None:
        """Take both files away, half made ones of a crash too; gone already is success."""
        path, name = self.limits_path(lease_id), self._name(lease_id)
        usage = (*self._space.files(name), *self._space.files(fresh(name)))
        with _named(path):
            preload = self.preload_path(lease_id)
            for made in (path, preload, self.guests_limits_path(lease_id)):
                made.unlink(missing_ok=True)
                made.with_name(fresh(made.name)).unlink(missing_ok=True)
            for gone in usage:
                gone.unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                path.parent.rmdir()

    def leave(self) -> None:
        """Take the directories and the mount away, as far as nothing of any lease or agent is in them."""
        with contextlib.suppress(OSError):
            self._limits.rmdir()
        self._space.leave()
        with contextlib.suppress(OSError):
            if not {entry.name for entry in self._root.iterdir()} - {"lib"}:  # no lease of any agent needs it
                shutil.rmtree(self._root / "lib", ignore_errors=True)
                self._root.rmdir()
                self._root.parent.rmdir()

    def _place(self, lease_id: int, uid: int, contained: bool) -> Path:
        """Where the usage file is, or shall be."""
        there = self._space.files(self._name(lease_id))
        if there:
            return there[0]
        space = self._space
        directory = space.private_directory_of(uid) if contained else space.directory_of(uid)
        return directory / self._name(lease_id)

    @staticmethod
    def _usage(path: Path, lease_id: int, uid: int, devices: int, contained: bool) -> UsageFile:
        """A container's programs have uids that the host does not know: theirs is whoever reaches it."""
        owner, mode = (0, CONTAINERS) if contained else (uid, HOLDERS)
        return UsageFile(path, lease_id, owner, devices, mode)

    def _name(self, lease_id: int) -> str:
        return f"{self._stem}-{lease_id:d}"

    def _why_not_built(self) -> str:
        """As the build left it beside the library that is missing."""
        with contextlib.suppress(OSError):
            return self._library.with_name("missing.txt").read_text(encoding="utf-8").strip()
        return "was not built: install a C compiler, then nodeagent again"

    def _copied(self) -> Path:
        content = self._library.read_bytes()
        copy = self._root / "lib" / f"libgpulease-{hashlib.sha256(content).hexdigest()[:16]}.so"
        with _named(copy):
            copy.parent.mkdir(mode=0o755, exist_ok=True)
            copy.parent.chmod(0o755)
            if not copy.exists():
                replace(copy, content, 0o755)
        return copy

    def _open_directories(self) -> None:
        with self._placing, _named(self._root):
            for directory in (self._root.parent, self._root, self._limits):
                make_own(directory)
            self._space.prepare()


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as fault:
        if isinstance(fault, OutsideFault):
            raise
        raise outside_fault(
            fault.filename or path, fault, ENOSPC="no space: usage files were made to grow"
        ) from fault
