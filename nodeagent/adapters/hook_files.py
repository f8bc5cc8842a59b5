"""The hook's two files of each lease: limits that only root writes, and usage that only the holder does.

They are separate because nobody may change a limit, and because root never trusts, follows or maps what a
user can write (threats 11 to 13). Usage files lie on a small file system of their own, so that a holder who
makes one grow fills nothing else; what grew is cut back here.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import platform
import shutil
import stat
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nodeagent.adapters.hook_format import (
    USAGE_ROWS,
    HookDevice,
    denied_count,
    limited_devices,
    limits_bytes,
    slot_lock,
    usage_bytes,
    usage_size,
    used_bytes,
    used_slots,
)
from nodeagent.adapters.systemcalls import outside_fault
from nodeagent.domain.errors import OutsideFault

# Compiled into the hook too: a program cannot be told to look elsewhere.
ROOT = Path("/run/nodeagent/hook")
LIBRARY = Path(__file__).parent.parent / "hook" / "libgpulease.so"

_USAGE_MIB = 128  # 4 KiB and 4 KiB a device for each lease: hundreds of leases of whole nodes
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_FLOCK = "hhqqi4x"  # struct flock of 64-bit Linux
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a lease's processes told of themselves: bytes by device, in the limits' order, and refusals."""

    used_bytes: tuple[int, ...]
    denied: int


class HookFiles:
    """The files below *root* of the agent instance whose cgroup subtree is *stem*.slice."""

    def __init__(self, stem: str, *, root: Path = ROOT, library: Path = LIBRARY) -> None:
        self._library = library
        self._public: Path | None = None
        self._root = root
        self._limits = root / stem
        self._mount = root / "usage"
        self._usage = self._mount / stem

    def unavailable(self) -> str | None:
        """Why no process can be hooked here, or None. Makes the directories: less proves nothing."""
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
        """The library where every user can load it: as installed, or a copy where others cannot go.

        A copy is named by its content, so that one in use is never replaced. Raises OutsideFault.
        """
        if self._public is None:
            others_can_go = all(parent.stat().st_mode & stat.S_IXOTH for parent in self._library.parents)
            self._public = self._library if others_can_go else self._copied()
        return self._public

    def limits_path(self, lease_id: int) -> Path:
        return self._limits / f"{lease_id:d}" / "limits"

    def prepare(self, lease_id: int, uid: int, devices: Sequence[HookDevice], *, strict: bool) -> Path:
        """Make both files of a lease; again is harmless, and never clears what is in use already.

        Returns the path of the limits. Raises OutsideFault naming the path.
        """
        self._open_directories()
        usage = self._usage / f"{lease_id:d}"
        with _named(usage):
            self._make_usage(usage, lease_id, uid, len(devices))
        path = self.limits_path(lease_id)
        with _named(path):
            path.parent.mkdir(mode=0o711, exist_ok=True)
            path.parent.chmod(0o711)
            _replace(path, limits_bytes(lease_id, devices, str(usage), strict=strict), 0o444)
        return path

    def verify(self, lease_id: int, devices: Sequence[HookDevice], *, strict: bool) -> None:
        """Read both files back. Raises OutsideFault where one is not as `prepare` left it."""
        path, usage = self.limits_path(lease_id), self._usage / f"{lease_id:d}"
        with _named(path):
            wanted = limits_bytes(lease_id, devices, str(usage), strict=strict)
            if path.read_bytes() != wanted:
                raise OutsideFault(path, "reads otherwise than it was written")
        with _named(usage), _opened(usage, len(devices)):
            pass

    def usage(self, lease_id: int, devices: int) -> Usage:
        """What the lease's living processes say they use; what dead ones left is not counted.

        A holder may write anything there: it is for people to look at, and decides nothing.
        Raises OutsideFault where the file was tampered with so that it cannot be read.
        """
        path = self._usage / f"{lease_id:d}"
        with _named(path), _opened(path, devices) as descriptor:
            content = os.pread(descriptor, usage_size(devices), 0)
            living = [slot for slot in used_slots(content, devices) if _is_locked(descriptor, slot)]
        used = tuple(used_bytes(content, index, living) for index in range(devices))
        return Usage(used, denied_count(content))

    def remove(self, lease_id: int) -> None:
        """Take both files away; gone already is success."""
        path = self.limits_path(lease_id)
        with _named(path):
            for gone in (path, self._usage / f"{lease_id:d}"):
                gone.unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                path.parent.rmdir()

    def leave(self) -> None:
        """Take the directories and the mount away, as far as nothing of any lease or agent is in them."""
        with contextlib.suppress(OSError):
            self._limits.rmdir()
        with contextlib.suppress(OSError):
            self._usage.rmdir()
        with contextlib.suppress(OSError):
            if self._mount.is_mount() and not any(self._mount.iterdir()):
                _umount(self._mount)
            self._mount.rmdir()
            if not {entry.name for entry in self._root.iterdir()} - {"lib"}:  # no lease of any agent needs it
                shutil.rmtree(self._root / "lib", ignore_errors=True)
                self._root.rmdir()
                self._root.parent.rmdir()

    def heal(self) -> tuple[Path, ...]:
        """Bring usage files that their holders made grow, or cut, back to their size, and say which.

        Until then the hook grants the lease nothing. What is missing counts as 0 until the processes
        concerned allocate again; a holder could have written that as well.
        """
        changed = []
        with _named(self._usage), os.scandir(self._usage) as entries:
            for entry in entries:
                devices = self._devices(entry.name)
                status = entry.stat(follow_symlinks=False)
                if not devices or not stat.S_ISREG(status.st_mode) or status.st_size == usage_size(devices):
                    continue
                _resize(Path(entry.path), usage_bytes(int(entry.name), devices))
                changed.append(Path(entry.path))
        return tuple(changed)

    def _devices(self, lease: str) -> int:
        """How many devices the limits of *lease* list; 0: there is no such lease."""
        try:
            return limited_devices(self.limits_path(int(lease)).read_bytes())
        except (ValueError, FileNotFoundError):
            return 0

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
                _replace(copy, content, 0o755)
        return copy

    def _open_directories(self) -> None:
        with _named(self._root):
            for directory in (self._root.parent, self._root, self._limits, self._mount):
                directory.mkdir(mode=0o711, exist_ok=True)
                _check_own(directory)
            if not self._mount.is_mount():
                _mount_tmpfs(self._mount)
            self._usage.mkdir(mode=0o711, exist_ok=True)
            self._usage.chmod(0o711)

    def _make_usage(self, path: Path, lease_id: int, uid: int, devices: int) -> None:
        """A file of the holder's in a directory of root's: nobody can put another in its place."""
        if path.exists():
            return
        fresh = path.with_name(f"{path.name}.new")
        fresh.unlink(missing_ok=True)
        descriptor = os.open(
            fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        try:
            os.posix_fallocate(descriptor, 0, usage_size(devices))  # so that charging never lacks space
            os.pwrite(descriptor, usage_bytes(lease_id, devices), 0)
            os.fchown(descriptor, uid, -1)
        finally:
            os.close(descriptor)
        fresh.rename(path)


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


@contextlib.contextmanager
def _opened(path: Path, devices: int) -> Iterator[int]:
    """The usage file itself: no link, no pipe that would make us wait, no other size."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size < usage_size(devices):
            raise OutsideFault(path, "is no usage file any more: its holder changed it")
        yield descriptor
    finally:
        os.close(descriptor)


def _resize(path: Path, empty: bytes) -> None:
    """Give *path* the size of *empty*, all of it set aside; the header anew if it had been cut."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        cut = os.fstat(descriptor).st_size < len(empty)
        os.ftruncate(descriptor, len(empty))
        os.posix_fallocate(descriptor, 0, len(empty))
        if cut:
            os.pwrite(descriptor, empty[:USAGE_ROWS], 0)
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int, slot: int) -> bool:
    """Whether the process of *slot* lives: it holds the slot's byte as long as it has its memory."""
    lock = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, slot_lock(slot), 1, 0)
    kind: int = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, lock))[0]
    return kind != int(fcntl.F_UNLCK)


def _check_own(directory: Path) -> None:
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != 0 or status.st_mode & 0o022:
        raise OutsideFault(directory, "must be a directory of root's that nobody else can write")


def _mount_tmpfs(directory: Path) -> None:
    options = f"mode=0711,size={_USAGE_MIB}m,nr_inodes=8192"
    if _libc.mount(
        b"gpulease", os.fsencode(directory), b"tmpfs", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, options.encode()
    ):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(directory))


def _umount(directory: Path) -> None:
    if _libc.umount2(os.fsencode(directory), 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(directory))


def _replace(path: Path, content: bytes, mode: int) -> None:
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, _CREATE, mode)
    try:
        os.write(descriptor, content)
        os.fchmod(descriptor, mode)  # whatever the umask
    finally:
        os.close(descriptor)
    fresh.rename(path)
