"""The secret that callers of the read-only listener show: in a file of the agent's own user's alone."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from nodeagent.adapters.systemcalls import outside_fault
from nodeagent.domain.errors import OutsideFault

# RFC 6750's characters. Of hexadecimal ones, which carry least, 32 are 128 bits.
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]{32,512}=*")
_LARGEST = 1024  # bytes
_MAKE_ONE = "make one: (umask 077; openssl rand -hex 32 >FILE)"


def read_token(path: Path) -> bytes:
    """The token in *path*.

    Raises:
        OutsideFault: it cannot be read, is not the agent's alone, or holds none of 32 characters or more.
    """
    try:
        # O_NONBLOCK: a FIFO of the name must not hold who opens it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as fault:
        raise outside_fault(path, fault) from None
    with os.fdopen(descriptor, "rb") as file:
        _check(path, os.fstat(file.fileno()))
        token = file.read(_LARGEST).strip()
    if not _TOKEN.fullmatch(token):
        raise OutsideFault(path, f"holds no token of 32 characters or more; {_MAKE_ONE}")
    return token


def _check(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OutsideFault(path, "is no regular file")
    if status.st_uid not in (0, os.geteuid()):
        raise OutsideFault(path, f"belongs to uid {status.st_uid}: chown it to root")
    if status.st_mode & 0o077:
        raise OutsideFault(path, "others can read or write it: chmod 0600 it")
