"""Take descriptors out of a peer that offers them by number: copies of what it holds."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from nodeagent.domain.errors import NotAllowed

_NR_PIDFD_GETFD = 438  # the same on every architecture
_SEALED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
LARGEST_COMMAND = 6 << 20  # bytes; the kernel's own bound for the words and environment of one execve

_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def taken(pidfd: int, numbers: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The peer's descriptors *numbers* as our own, in order, closed at the end.

    Raises NotAllowed where the peer has none of that number, or is gone.
    """
    own: list[int] = []
    try:
        for number in numbers:
            own.append(_getfd(pidfd, number))
        yield tuple(own)
    finally:
        for descriptor in own:
            os.close(descriptor)


def sealed_content(descriptor: int) -> bytes:
    """All of a sealed memory file: nobody can change it, and reading it waits for nobody.

    Raises NotAllowed for anything else: another file could make the agent wait for its user.
    """
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0
    if seals & _SEALED != _SEALED:
        raise NotAllowed("the command must lie in a memory file that is sealed against every change")
    size = os.fstat(descriptor).st_size
    if size > LARGEST_COMMAND:
        raise NotAllowed(f"the command and its environment are over {LARGEST_COMMAND >> 20} MiB")
    content = b""
    while len(content) < size:
        part = os.pread(descriptor, size - len(content), len(content))
        if not part:
            break
        content += part
    return content


def _getfd(pidfd: int, number: int) -> int:
    got: int = _libc.syscall(
        ctypes.c_long(_NR_PIDFD_GETFD), ctypes.c_int(pidfd), ctypes.c_int(number), ctypes.c_uint(0)
    )
    if got >= 0:
        return got
    fault = ctypes.get_errno()
    if fault == errno.EBADF:
        raise NotAllowed(f"the peer has no descriptor {number}")
    if fault == errno.ESRCH:
        raise NotAllowed("the process that asked has ended")
    raise NotAllowed(f"descriptor {number} cannot be taken: {os.strerror(fault)}")
