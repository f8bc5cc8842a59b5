"""Names, a /dev/shm of one test, and no object left after it."""

from __future__ import annotations

import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from ipc_makers import OTHER, RMID, UID, libc

from nodeagent.adapters.ipc import SHM, IpcSpace
from nodeagent.domain.ipc import Kind


@pytest.fixture
def name() -> str:
    return f"nodeagent-test-{secrets.token_hex(6)}"


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Whatever objects of the two users a test leaves are removed."""
    yield
    for uid in (UID, OTHER):
        for found in IpcSpace().find(uid).found:
            number = int(found.name) if found.kind is not Kind.FILE else 0
            if found.kind is Kind.FILE:
                (SHM / found.name).unlink(missing_ok=True)
            elif found.kind is Kind.SEGMENT:
                libc.shmctl(number, RMID, None)
            elif found.kind is Kind.QUEUE:
                libc.msgctl(number, RMID, None)
            else:
                libc.semctl(number, 0, RMID)


@pytest.fixture
def shm() -> Iterator[Path]:
    """A /dev/shm of the test's own, that users may write to: a tmpfs, as birth times need one."""
    made = SHM / f"nodeagent-test-{secrets.token_hex(6)}"
    made.mkdir()
    made.chmod(0o1777)
    yield made
    shutil.rmtree(made)
