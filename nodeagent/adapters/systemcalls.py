"""Linux system calls that Python has no binding for: one function each, named like the call."""

from __future__ import annotations

import ctypes
import errno
import os

from nodeagent.domain.errors import OutsideFault

RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08

# The same number on every architecture but alpha: calls after 424 share one table.
_NR_OPENAT2 = 437

_libc = ctypes.CDLL(None, use_errno=True)


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


def getsockopt(descriptor: int, level: int, option: int, size: int) -> bytes:
    """Read up to *size* bytes of a socket option; Python's own stops at 1024."""
    buffer = ctypes.create_string_buffer(size)
    length = ctypes.c_uint32(size)
    if _libc.getsockopt(descriptor, level, option, buffer, ctypes.byref(length)) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return buffer.raw[: length.value]


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
