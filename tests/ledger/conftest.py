"""A fresh ledger of two devices on one pool, and a way past its code to its tables."""

from __future__ import annotations

import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import ledger_builders as build

from nodeagent.ledger.engine import connect
from nodeagent.ledger.ledger import Ledger
from nodeagent.ledger.migrate import migrate


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ledger.db"


@pytest.fixture
def clock() -> build.TurnedClock:
    return build.TurnedClock()


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database of the newest schema, to be copied."""
    path = tmp_path_factory.mktemp("migrated") / "ledger.db"
    migrate(path)
    return path


@pytest.fixture
def ledger(path: Path, clock: build.TurnedClock, migrated: Path) -> Iterator[Ledger]:
    """Open, with CARD and OTHER of 32 CUs and 8 queue slots each on a pool of 64 GiB."""
    path.parent.mkdir(mode=0o700)
    shutil.copy(migrated, path)
    made = Ledger(path, clock)
    made.open()
    with made.write() as tx:
        tx.register([build.device(), build.device(build.OTHER)], [build.pool()])
    yield made
    made.close()


@pytest.fixture
def sql(ledger: Ledger, path: Path) -> Iterator[sqlite3.Connection]:
    """A raw connection, in autocommit mode, to the ledger's database."""
    with closing(connect(path)) as connection:
        yield connection
