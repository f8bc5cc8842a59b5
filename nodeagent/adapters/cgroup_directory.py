"""One cgroup, held by its directory's descriptor: whatever its path means later, this acts on that one."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from nodeagent.adapters.cgroup_sweep import ask, child_names, members, sweep
from nodeagent.adapters.systemcalls import RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, openat2, outside_fault
from nodeagent.domain.errors import OutsideFault

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
# A seccomp filter older than the call answers EPERM, a kernel older than it ENOSYS.
_NO_OPENAT2 = (errno.ENOSYS, errno.EPERM)


@dataclass(frozen=True, slots=True)
class CgroupRef:
    """A cgroup as recorded when it was made. The inode number is never given again within a boot."""

    path: str  # absolute below the cgroup2 mount: /gpulease.slice/gpulease-7.slice
    inode: int


class OpenCgroup:
    """One cgroup by its directory's descriptor. Close it, or use it as a context."""

    def __init__(self, descriptor: int, path: str, *, kernel_kills: bool = True) -> None:
        self._descriptor = descriptor
        self._kernel_kills = kernel_kills
        self.path = path
        status = os.fstat(descriptor)
        self.inode = status.st_ino
        self.owner = status.st_uid

    @property
    def ref(self) -> CgroupRef:
        """What to record of it."""
        return CgroupRef(self.path, self.inode)

    def fileno(self) -> int:
        """The directory's descriptor, valid until `close`."""
        return self._descriptor

    def close(self) -> None:
        """Give the descriptor back. Call it once."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def read(self, name: str) -> str | None:
        """The text of the control file *name*; None where the file, or by now the cgroup, does not exist."""
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=self._descriptor)
            with os.fdopen(descriptor, encoding="ascii", errors="replace") as file:
                return file.read()
        except OSError as fault:
            if fault.errno in (errno.ENOENT, errno.ENODEV):
                return None
            raise outside_fault(f"{self.path}/{name}", fault) from fault

    def write(self, name: str, text: str, *, flags: int = 0) -> None:
        """Write *text* to the existing control file *name* in one call. Raises the bare `OSError`."""
        # Truncation means nothing to the kernel; a plain file, standing in for one, must not keep a tail.
        flags |= os.O_WRONLY | os.O_NOFOLLOW | os.O_TRUNC
        descriptor = os.open(name, flags, dir_fd=self._descriptor)
        try:
            os.write(descriptor, text.encode("ascii"))
        finally:
            os.close(descriptor)

    def procs(self) -> tuple[int, ...]:
        """The processes directly in it; 0 stands for one of a foreign pid namespace."""
        return tuple(int(pid) for pid in (self.read("cgroup.procs") or "").split())

    def members(self, without: Collection[str] = ()) -> tuple[int, ...]:
        """The processes in it and below it, but for those in the cgroups *without* (paths) and below them."""
        return members(self._descriptor, self.path, without)

    def populated(self) -> bool:
        """Whether a live process is in it or below it; a removed cgroup has none."""
        return "populated 1" in (self.read("cgroup.events") or "").splitlines()

    def move(self, pid: int) -> None:
        """Move the process *pid*, with all its threads, into it. Raises ProcessLookupError once it ended."""
        try:
            self.write("cgroup.procs", str(pid))
        except ProcessLookupError:
            raise
        except OSError as fault:
            raise outside_fault(
                f"{self.path}/cgroup.procs",
                fault,
                EBUSY="it has controllers enabled for its children, so it may hold no process itself",
                EOPNOTSUPP="the cgroup is threaded, or below a threaded one",
                EINVAL="a kernel thread, or one that may not be moved",
            ) from fault

    def freeze(self) -> None:
        """Let whoever comes in from now on run no line of its own; it can be killed. Not before Linux 5.2."""
        self._set_frozen(True)

    def thaw(self) -> None:
        """Let everything in it and below it run on, where nothing below is frozen by itself."""
        self._set_frozen(False)

    def frozen(self) -> bool:
        """Whether it is frozen by itself: not by a cgroup above it."""
        return (self.read("cgroup.freeze") or "0").strip() == "1"

    def _set_frozen(self, frozen: bool) -> None:
        try:
            self.write("cgroup.freeze", "1" if frozen else "0")
        except FileNotFoundError:
            pass
        except OSError as fault:
            raise outside_fault(f"{self.path}/cgroup.freeze", fault) from fault

    def ask(self, number: int) -> None:
        """Send the signal *number* to everything in it and below it, once. Waits for nobody."""
        ask(self._descriptor, number)

    def kill(self) -> None:
        """SIGKILL everything in it and below it, forks included. Waits for nobody: see `populated`."""
        if self._kernel_kills:
            try:
                self.write("cgroup.kill", "1")
                return
            except FileNotFoundError:
                pass  # before Linux 5.14, or removed meanwhile: the sweep then finds nobody
            except OSError as fault:
                raise outside_fault(f"{self.path}/cgroup.kill", fault) from fault
        sweep(self._descriptor)

    def remove(self) -> None:
        """Remove it and its empty children, bottom up; gone already is success.

        Raises:
            OutsideFault: a process still lives in it or below it.
        """
        try:
            _remove_children(self._descriptor)
            _remove_named(self._descriptor, Path(self.path).name, self.inode)
        except OSError as fault:
            raise outside_fault(
                self.path, fault, EBUSY="still populated: kill it and wait before removing"
            ) from fault


def open_beneath(mount: Path, path: str, *, kernel_resolves: bool = True) -> int:
    """Open the directory *path* (absolute below *mount*), following no symbolic link and no ``..``.

    Raises:
        FileNotFoundError: there is no such directory.
        OutsideFault: a link stands in the way, or the kernel says no.
    """
    parts = parts_of(path)
    try:
        root = os.open(mount, DIRECTORY)
        if not parts:
            return root
        try:
            return _open_below(root, parts, kernel_resolves)
        finally:
            os.close(root)
    except FileNotFoundError:
        raise
    except OSError as fault:
        # O_NOFOLLOW with O_DIRECTORY reports a link as ENOTDIR.
        raise outside_fault(f"{mount}{path}", fault, ENOTDIR="not a directory, or a symbolic link") from fault


def parts_of(path: str) -> list[str]:
    """Split an absolute cgroup path. Raises OutsideFault for one that could walk elsewhere."""
    parts = path.split("/")[1:] if path != "/" else []
    if not path.startswith("/") or any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise OutsideFault(path, "not a plain absolute cgroup path")
    return parts


def _open_below(root: int, parts: list[str], kernel_resolves: bool) -> int:
    if kernel_resolves:
        try:
            return openat2(root, "/".join(parts), DIRECTORY, resolve=RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS)
        except OSError as fault:
            if fault.errno not in _NO_OPENAT2:
                raise
    at = os.dup(root)
    for part in parts:
        try:
            below = os.open(part, DIRECTORY, dir_fd=at)
        finally:
            os.close(at)
        at = below
    return at


def _remove_children(directory: int) -> None:
    for name in child_names(directory):
        try:
            child = os.open(name, DIRECTORY, dir_fd=directory)
        except FileNotFoundError:
            continue
        try:
            _remove_children(child)
        finally:
            os.close(child)
        try:
            os.rmdir(name, dir_fd=directory)
        except FileNotFoundError:
            continue


def _remove_named(directory: int, name: str, inode: int) -> None:
    try:
        parent = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return
    try:
        # Looked at from the parent, by inode: a directory made anew under the old name is not ours.
        if os.stat(name, dir_fd=parent, follow_symlinks=False).st_ino == inode:
            os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        return
    finally:
        os.close(parent)
