"""Bring a database to this version's schema, with a backup before."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.domain.errors import LedgerUnavailable
from nodeagent.ledger.backup import backup
from nodeagent.ledger.engine import connect, engine
from nodeagent.ledger.faults import translated
from nodeagent.ledger.tables import metadata
from nodeagent.ledger.triggers import TRIGGERS

if TYPE_CHECKING:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

# What `script` gives as its head. Told here, too, for Alembic takes long to load, and most starts need none.
NEWEST = "0005"
# As Alembic makes it.
_VERSION = (
    "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL,"
    " CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
)


def migrate(path: Path, *, to: str = "head") -> tuple[str, ...]:
    """Upgrade the database at *path*, making it where there is none; returns the revisions it went through.

    To make it is one step.

    Writes nothing when there is nothing to do.

    Raises:
        LedgerUnavailable: the file is damaged, no ledger of ours, or a newer version's.
    """
    try:
        with _alone(path), translated(path):
            _create(path)
            _roll_back(path)
            origin = revision(path)
            if origin is None and to == "head":
                return _lay_out(path)
            return () if origin == NEWEST and to == "head" else _upgrade(path, origin, to)
    except OSError as error:
        raise LedgerUnavailable(f"{error.filename or path}: {error.strerror}") from error


def script() -> ScriptDirectory:
    from alembic.script import ScriptDirectory

    return ScriptDirectory.from_config(_config())


def revision(path: Path) -> str | None:
    """The revision of the schema at *path*; None for an empty database.

    Raises:
        LedgerUnavailable: it holds tables and says no revision.
    """
    with closing(connect(path, read_only=True)) as connection:
        names = {
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        if "alembic_version" in names:
            return _only(connection.execute("SELECT version_num FROM alembic_version"))
    if names:
        raise LedgerUnavailable(f"{path}: has tables but no schema revision: this is no ledger of the agent")
    return None


def _lay_out(path: Path) -> tuple[str, ...]:
    """Make the newest schema at once: the migrations come to the same, and Alembic would stay in memory."""
    writer = engine(path, begin="BEGIN IMMEDIATE")
    try:
        with writer.begin() as connection:
            metadata.create_all(connection)
            for statement in (*TRIGGERS, _VERSION):
                connection.exec_driver_sql(statement)
            connection.exec_driver_sql("INSERT INTO alembic_version VALUES (?)", (NEWEST,))
    finally:
        writer.dispose()
    return (NEWEST,)


def _upgrade(path: Path, origin: str | None, to: str) -> tuple[str, ...]:
    known = script()
    every = {each.revision for each in known.walk_revisions()}
    if origin is not None and origin not in every:
        raise LedgerUnavailable(
            f"{path}: schema revision {origin} is newer than this version of nodeagent, which knows"
            f" {known.get_current_head()}: install the version that wrote it, or restore a backup"
        )
    steps = tuple(
        each.revision for each in known.iterate_revisions(to, origin or "base") if each.revision != origin
    )
    if not steps:
        return ()
    if origin is not None:
        backup(path, _new_name(path, origin))
    _run(path, to)
    return steps[::-1]


def _run(path: Path, to: str) -> None:
    from alembic import command

    writer = engine(path, begin="BEGIN IMMEDIATE")
    try:
        with writer.connect() as connection:
            config = _config()
            config.attributes["connection"] = connection
            command.upgrade(config, to)
    finally:
        writer.dispose()


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(files("nodeagent.migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _create(path: Path) -> None:
    """SQLite gives its log the mode of the database, so that is made first, and closed to others."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        if not path.is_file():
            raise LedgerUnavailable(f"{path}: is no regular file: move it away") from None


def _roll_back(path: Path) -> None:
    """Take back what a death left half written before the database had a write-ahead log.

    A reader refuses the file until a writer has done so.
    """
    if path.with_name(f"{path.name}-journal").exists():
        connect(path).close()


def _new_name(path: Path, origin: str) -> Path:
    stem = f"{path.name}.before-upgrade-from-{origin}"
    taken = {each.name for each in path.parent.iterdir()}
    numbered = (f"{stem}.{number}" for number in range(1, len(taken) + 2))
    return path.with_name(next(name for name in (stem, *numbered) if name not in taken))


def _only(cursor: sqlite3.Cursor) -> str | None:
    row = cursor.fetchone()
    return None if row is None else str(row[0])


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One migration at a time, across processes."""
    lock = path.with_name(f"{path.name}.migrate.lock")
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
