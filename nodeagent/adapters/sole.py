"""One agent for each state directory: two on one ledger would each end what the other granted."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nodeagent.domain.errors import OutsideFault

LOCK = "lock"
_STEP_SECONDS = 0.1


@contextmanager
def sole(directory: Path, *, patience: float = 10.0) -> Iterator[None]:
    """Hold *directory* for this process and those it forks from here on.

    Waits *patience* seconds: the workers of an agent that was killed need a moment to notice.

    Raises:
        OutsideFault: another agent has it, or the lock cannot be made.
    """
    path = directory / LOCK
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise OutsideFault(path, str(error.strerror)) from None
    try:
        _lock(descriptor, path, time.monotonic() + patience)
        with suppress(OSError):  # it is for people to read: a disk that is full or fails stops no start
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
        yield
    finally:
        os.close(descriptor)


def holder(directory: Path) -> int | None:
    """The process that `sole` runs in; None where there is none.

    Raises:
        OutsideFault: the lock cannot be read.
    """
    path = directory / LOCK
    try:
        written, status = path.read_bytes().strip(), path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OutsideFault(path, str(error.strerror)) from None
    # A full disk may have kept the number of a process of before, which has it open no more.
    pid = int(written) if written.isdigit() else 0
    return pid if pid and _has_open(pid, status) else None


def _has_open(pid: int, file: os.stat_result) -> bool:
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if os.path.samestat(entry.stat(), file):
                    return True
    return False


def _lock(descriptor: int, path: Path, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                owner = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip() or "?"
                raise OutsideFault(
                    path,
                    f"another agent (process {owner}) runs on this state directory; stop it, or give this one"
                    " a --state-dir of its own",
                ) from None
            time.sleep(_STEP_SECONDS)
        else:
            return
