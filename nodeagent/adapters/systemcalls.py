"""Linux system calls that Python has no binding for: one function each, named like the call."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

from nodeagent.domain.errors import OutsideFault

RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8

# The same number on every architecture but alpha: calls after 424 share one table.
_NR_OPENAT2 = 437

_libc = ctypes.CDLL(None, use_errno=True)


_AT_SYMLINK_NOFOLLOW, _AT_STATX_DONT_SYNC = 0x100, 0x4000
_STATX_BASIC, _STATX_BTIME = 0x7FF, 0x800


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def openat2(directory: int, path: str, flags: int, *, resolve: int) -> int:
    """Open *path* below the descriptor *directory* as *resolve* allows; close-on-exec, never creates.

    Raises `OSError` with the errno and the path: ENOSYS on kernels before 5.6, ELOOP for a symbolic link,
    EXDEV for a way out of *directory*.
    """
    how = _OpenHow(flags | os.O_CLOEXEC, 0, resolve)
    descriptor: int = _libc.syscall(
        ctypes.c_long(_NR_OPENAT2),
        ctypes.c_int(directory),
        ctypes.c_char_p(os.fsencode(path)),
        ctypes.byref(how),
        ctypes.c_size_t(ctypes.sizeof(how)),
    )
    if descriptor < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return descriptor


class _Timestamp(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_uint32), ("_pad", ctypes.c_int32))


class Statx(ctypes.Structure):
    """``struct statx`` (linux/stat.h)."""

    _fields_ = (
        ("mask", ctypes.c_uint32),
        ("blksize", ctypes.c_uint32),
        ("attributes", ctypes.c_uint64),
        ("nlink", ctypes.c_uint32),
        ("uid", ctypes.c_uint32),
        ("gid", ctypes.c_uint32),
        ("mode", ctypes.c_uint16),
        ("_pad", ctypes.c_uint16),
        ("inode", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("blocks", ctypes.c_uint64),
        ("attributes_mask", ctypes.c_uint64),
        ("atime", _Timestamp),
        ("btime", _Timestamp),
        ("ctime", _Timestamp),
        ("mtime", _Timestamp),
        ("rdev_major", ctypes.c_uint32),
        ("rdev_minor", ctypes.c_uint32),
        ("dev_major", ctypes.c_uint32),
        ("dev_minor", ctypes.c_uint32),
        ("_spare", ctypes.c_uint64 * 14),
    )

    @property
    def device(self) -> int:
        """The file system's device number, as `os.stat` tells it."""
        return os.makedev(self.dev_major, self.dev_minor)

    @property
    def born(self) -> float | None:
        """When the file was made, wall clock in s; None where the file system does not keep it."""
        if not self.mask & _STATX_BTIME:
            return None
        return float(self.btime.seconds + self.btime.nanoseconds / 1e9)


def statx(directory: int, name: str, *, follow: bool = False) -> Statx:
    """What the kernel knows of *name* in the open *directory*, without asking a server or a program for it.

    *follow* is for the links in ``/proc/<pid>/fd``, which lead to open files, not along a path.
    Raises `OSError`.
    """
    told = Statx()
    flags = _AT_STATX_DONT_SYNC | (0 if follow else _AT_SYMLINK_NOFOLLOW)
    mask = ctypes.c_uint(_STATX_BASIC | _STATX_BTIME)
    if _libc.statx(ctypes.c_int(directory), os.fsencode(name), flags, mask, ctypes.byref(told)) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return told


def getsockopt(descriptor: int, level: int, option: int, size: int) -> bytes:
    """Read up to *size* bytes of a socket option; Python's own stops at 1024."""
    buffer = ctypes.create_string_buffer(size)
    length = ctypes.c_uint32(size)
    if _libc.getsockopt(descriptor, level, option, buffer, ctypes.byref(length)) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return buffer.raw[: length.value]


def inotify_init1(flags: int) -> int:
    """A queue of events. Raises `OSError`."""
    descriptor: int = _libc.inotify_init1(ctypes.c_int(flags))
    if descriptor < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return descriptor


def inotify_add_watch(descriptor: int, path: str, mask: int) -> int:
    """Have events of *path* in the queue; the watch, the same for the same file. Raises `OSError` with it."""
    watch: int = _libc.inotify_add_watch(ctypes.c_int(descriptor), os.fsencode(path), ctypes.c_uint32(mask))
    if watch < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return watch


def mount(source: str, target: Path, kind: str, flags: int, options: str) -> None:
    """Mount a file system of *kind* on the directory *target*. Raises `OSError` with its path."""
    words = (source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), options.encode())
    if _libc.mount(*words) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))


def umount(target: Path) -> None:
    """Take away what is mounted on *target*. Raises `OSError` with its path."""
    if _libc.umount(os.fsencode(target)) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))


EXPLANATIONS = {
    errno.EACCES: "not allowed: the agent needs root, or a delegated subtree of its own",
    errno.EPERM: "not allowed: the agent needs root, or a delegated subtree of its own",
    errno.EROFS: "mounted read-only: in a container, or a unit with ProtectControlGroups=yes",
    errno.ENOENT: "does not exist",
    errno.ENODEV: "was removed meanwhile",
    errno.ELOOP: "a symbolic link stands in the way: somebody else made it",
    errno.EXDEV: "leads out of the cgroup mount",
    errno.EBUSY: "busy: it holds processes, or children that do",
    errno.ENOSPC: "cgroup.max.depth or cgroup.max.descendants of a parent is reached",
}


def outside_fault(path: object, fault: OSError, **causes: str) -> OutsideFault:
    """Turn *fault* into one that names *path* and the likely cause; *causes* (``EBUSY="…"``) come first."""
    number = fault.errno or 0
    name = errno.errorcode.get(number, "unknown error")
    why = causes.get(name) or EXPLANATIONS.get(number) or os.strerror(number)
    return OutsideFault(path, f"{why} ({name})")
