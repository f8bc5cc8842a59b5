"""Root's files that others read: whoever reads one sees the old or the new one, never a part."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from nodeagent.adapters.hook_usage import fresh
from nodeagent.adapters.systemcalls import outside_fault

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def replace(path: Path, content: bytes, mode: int) -> None:
    """Put *content* at *path*, in a file of *mode*. Raises OSError; `fresh` of the name may then be left."""
    new = path.with_name(fresh(path.name))
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, _CREATE, mode), "wb") as file:
        file.write(content)
        os.fchmod(file.fileno(), mode)  # whatever the umask
    new.rename(path)


@contextlib.contextmanager
def faults_of(path: Path) -> Iterator[None]:
    """Raise what the node says as OutsideFault, which names *path* unless the fault does."""
    try:
        yield
    except OSError as fault:
        raise outside_fault(fault.filename or path, fault) from fault
