"""The schema of the migrations is the schema of the code, and old databases come along."""

from __future__ import annotations

import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import ledger_builders as build
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from old_schemas import LATER, REVISIONS, fill, migrations_of_next_version
from sqlalchemy import create_engine
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateTable

from nodeagent.domain.errors import LedgerUnavailable
from nodeagent.ledger import checks
from nodeagent.ledger.engine import connect
from nodeagent.ledger.ledger import Ledger
from nodeagent.ledger.migrate import NEWEST, migrate, revision, script
from nodeagent.ledger.tables import metadata
from nodeagent.ledger.triggers import TRIGGERS


def made(path: Path) -> None:
    """At once, as for a first start."""
    migrate(path)


def walked(path: Path) -> None:
    """By every migration there is, as that of an agent which was always upgraded."""
    migrate(path, to=REVISIONS[0])
    migrate(path)


either_way = pytest.mark.parametrize("come_about", [made, walked])
Comes = Callable[[Path], None]


@either_way
def test_the_tables_are_the_codes(path: Path, come_about: Comes) -> None:
    """Alembic finds no difference between the tables of the code and those of the database."""
    path.parent.mkdir()
    come_about(path)
    engine = create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


@either_way
def test_the_constraints_are_the_codes(path: Path, come_about: Comes) -> None:
    """Checks, STRICT and WITHOUT ROWID are the code's too, which Alembic does not compare."""
    path.parent.mkdir()
    come_about(path)
    with closing(connect(path)) as connection:
        found = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'"))
    for table in metadata.sorted_tables:
        made = str(CreateTable(table).compile(dialect=sqlite.dialect()))
        assert parts(found[table.name]) == parts(made), table.name


def parts(statement: str) -> set[str]:
    """The lines of a CREATE TABLE, in any order."""
    return {line.strip().rstrip(",").replace('"', "") for line in statement.splitlines() if line.strip()}


@either_way
def test_the_migrated_triggers_are_the_codes(path: Path, come_about: Comes) -> None:
    """Every trigger of the code stands in the database word for word, and no other."""
    path.parent.mkdir()
    come_about(path)
    with closing(connect(path)) as connection:
        found = {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master WHERE type = 'trigger'")}
    assert found == set(TRIGGERS)


@pytest.mark.parametrize("origin", REVISIONS)
def test_a_ledger_of_every_revision_comes_along(path: Path, clock: build.TurnedClock, origin: str) -> None:
    """A database with data of any revision is upgraded, sound, and has its live lease still."""
    path.parent.mkdir()
    migrate(path, to=origin)
    with closing(connect(path)) as connection:
        fill(connection, origin)
    migrate(path)
    assert revision(path) == REVISIONS[-1]
    ledger = Ledger(path, clock)
    ledger.open()
    assert ledger.health().reason is None
    (lease,) = ledger.live()
    assert lease.id == 1
    assert ledger.held() == lease.slices != ()
    assert len(ledger.leases()) == 2
    ledger.close()


def test_events_of_before_came_once_and_ids_go_on(path: Path, clock: build.TurnedClock) -> None:
    """Folding leaves what there was as it was, and gives no id of an event again that was pruned before."""
    path.parent.mkdir()
    migrate(path, to="0002")
    with closing(connect(path)) as connection:
        fill(connection, "0002")
        connection.execute("UPDATE sqlite_sequence SET seq = 77 WHERE name = 'events'")
    migrate(path)
    ledger = Ledger(path, clock)
    ledger.open()
    (event,) = ledger.events()
    assert (event.id, event.count, event.first_at) == (1, 1, event.at)
    with ledger.write() as tx:
        assert tx.event("started", uid=None) == 78
    ledger.close()


def test_a_migration_that_is_not_due_writes_nothing(path: Path) -> None:
    """At the newest revision migrate() leaves the file as it is and makes no backup."""
    path.parent.mkdir()
    assert migrate(path) == (NEWEST,)
    before = path.read_bytes()
    assert migrate(path) == ()
    assert path.read_bytes() == before
    assert not list(path.parent.glob("*.before-*"))


def test_the_database_is_private_from_the_start(path: Path) -> None:
    """A database that migrate() makes is mode 0600."""
    path.parent.mkdir()
    migrate(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_failed_migration_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a step fails halfway, nothing of it stays, and a later try goes through."""
    path.parent.mkdir()
    migrate(path, to=REVISIONS[0])

    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("made to fail")

    with monkeypatch.context() as broken:
        broken.setattr("alembic.op.execute", fail)
        with pytest.raises(LedgerUnavailable, match="made to fail"):
            migrate(path)
    assert revision(path) == REVISIONS[0]
    assert migrate(path) == tuple(REVISIONS[1:])


def test_a_first_start_cut_short_is_taken_up(path: Path, tmp_path: Path) -> None:
    """A journal of the time before the write-ahead log, left by a death, is rolled back and not refused."""
    other = tmp_path / "dying.db"
    path.parent.mkdir(mode=0o700)
    with closing(sqlite3.connect(other, isolation_level=None)) as dying:
        dying.execute("PRAGMA cache_size=1")  # so that it writes before it commits
        dying.execute("BEGIN")
        dying.execute("CREATE TABLE half (written TEXT)")
        dying.executemany("INSERT INTO half VALUES (?)", [("x" * 4000,)] * 50)
        shutil.copy(other, path)
        shutil.copy(other.with_name("dying.db-journal"), path.with_name(f"{path.name}-journal"))
    assert migrate(path) == (NEWEST,)


def test_a_step_that_copies_a_table_keeps_what_hangs_on_it(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before an upgrade a private backup is made; a copied table keeps rows, children, rules and STRICT."""
    path.parent.mkdir()
    migrate(path)
    with closing(connect(path)) as connection:
        fill(connection, REVISIONS[-1])
    later = migrations_of_next_version(tmp_path / "migrations")
    monkeypatch.setattr("nodeagent.ledger.migrate.files", lambda _: later)
    monkeypatch.setattr("nodeagent.ledger.migrate.NEWEST", LATER)
    assert migrate(path) == (LATER,)
    (copy,) = path.parent.glob("*.before-upgrade-*")
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert (revision(copy), revision(path)) == (REVISIONS[-1], LATER)
    with closing(connect(path)) as connection:
        assert checks.problems(connection) == ()
        assert connection.execute("SELECT count(*), count(colour) FROM leases").fetchone() == (2, 0)
        assert connection.execute("SELECT count(*) FROM held_cus").fetchone() == (4,)
        found = {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master WHERE type = 'trigger'")}
        assert found == set(TRIGGERS)
        assert all(strict for *_, strict in connection.execute("PRAGMA table_list(leases)"))


def test_the_newest_revision_is_known_without_looking_for_it() -> None:
    """A constant that fell behind would let a start pass over a migration."""
    assert script().get_current_head() == NEWEST


def test_a_start_with_nothing_to_migrate_loads_no_alembic(path: Path) -> None:
    """Nor a first one: it would take a tenth of the time until the first grant, and 17 MB from then on."""
    path.parent.mkdir()
    code = "import sys; from nodeagent.ledger.migrate import migrate; from pathlib import Path;"
    code += f" migrate(Path({str(path)!r})); sys.exit('alembic' in sys.modules)"
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code], check=True)


def test_a_migrated_ledger_is_sound(path: Path) -> None:
    """A fresh database passes its own checks."""
    path.parent.mkdir()
    migrate(path)
    with closing(connect(path)) as connection:
        assert checks.problems(connection) == ()
