"""Ledgers of other versions: samples of each revision's data, and the revision that may come next."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

from nodeagent.ledger.migrate import script

REVISIONS = [each.revision for each in script().walk_revisions()][::-1]
SAMPLES = Path(__file__).parent / "samples"
LATER = "9999"
_NEXT = """
import sqlalchemy as sa
from alembic import op
revision, down_revision, branch_labels, depends_on = "{later}", "{head}", None, None

def upgrade():
    triggers = op.get_bind().exec_driver_sql(
        "SELECT sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'leases'").scalars().all()
    with op.batch_alter_table("leases", recreate="always") as table:
        table.add_column(sa.Column("colour", sa.Text()))
    for trigger in triggers:
        op.execute(trigger)
"""


def fill(
    connection: sqlite3.Connection, origin: str, changes: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Insert the rows of *origin*'s sample as they stood, which the triggers would not have as new ones.

    *changes*: text that takes another's place in it first.
    """
    sample = (SAMPLES / f"{origin}.sql").read_text()
    for old, new in changes.items():
        sample = sample.replace(old, new)
    triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    connection.executescript(sample)
    for _, statement in triggers:
        connection.execute(statement)


def migrations_of_next_version(directory: Path) -> Path:
    """The migrations with one more, which makes a large table anew; returns *directory*, made here."""
    shutil.copytree(str(files("nodeagent.migrations")), directory)
    text = _NEXT.format(later=LATER, head=REVISIONS[-1])
    (directory / "versions" / f"{LATER}_later.py").write_text(text)
    return directory
