"""Events that say how often they came, and since when."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

# What there was before came once.
_COPY = """
    INSERT INTO events
        (id, kind, uid, lease, device, reason, data, size, boot_id, boot_ns, at, count, first_at)
    SELECT id, kind, uid, lease, device, reason, data, size, boot_id, boot_ns, at, 1, at FROM old_events
"""
# Ids are never given again, also where the last of them were pruned.
_FORGET = "DELETE FROM sqlite_sequence WHERE name = 'events'"
_GO_ON = """
    INSERT INTO sqlite_sequence (name, seq)
    SELECT 'events', seq FROM sqlite_sequence WHERE name = 'old_events'
"""


def upgrade() -> None:
    """Made anew: a column that is added later has no place of its own in SQLite's text of the table."""
    op.drop_index("ix_events_lease", "events")
    op.rename_table("events", "old_events")
    op.create_table(
        "events",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("uid", sa.Integer(), nullable=True),
        sa.Column("lease", sa.Integer(), nullable=True),
        sa.Column("device", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("data", sa.Text(), nullable=True),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.Column("boot_ns", sa.Integer(), nullable=False),
        sa.Column("at", sa.REAL(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("first_at", sa.REAL(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
        sqlite_autoincrement=True,
        sqlite_strict=True,
    )
    op.create_index("ix_events_lease", "events", ["lease", "id"], unique=False)
    op.execute(_COPY)
    op.execute(_FORGET)
    op.execute(_GO_ON)
    op.drop_table("old_events")
