"""Anchors that are containers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# The columns that there were before.
_COPY = """
    INSERT INTO anchors (lease, kind, armed, deadline_ns, ttl_seconds, pid, start_time, cgroup, inode)
    SELECT lease, kind, armed, deadline_ns, ttl_seconds, pid, start_time, cgroup, inode FROM old_anchors
"""


def upgrade() -> None:
    """Made anew: SQLite changes no check of a table that is there."""
    op.rename_table("anchors", "old_anchors")
    op.create_table(
        "anchors",
        sa.Column("lease", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("armed", sa.Integer(), nullable=False),
        sa.Column("deadline_ns", sa.Integer(), nullable=True),
        sa.Column("ttl_seconds", sa.Integer(), nullable=True),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("start_time", sa.Integer(), nullable=True),
        sa.Column("cgroup", sa.Text(), nullable=True),
        sa.Column("inode", sa.Integer(), nullable=True),
        sa.Column("container", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "kind IN ('cgroup', 'container', 'external', 'process', 'ttl')", name=op.f("ck_anchors_kind")
        ),
        sa.CheckConstraint("armed IN (0, 1)", name=op.f("ck_anchors_armed")),
        sa.ForeignKeyConstraint(["lease"], ["leases.id"], name=op.f("fk_anchors_lease"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("lease", name=op.f("pk_anchors")),
        sqlite_strict=True,
    )
    op.execute(_COPY)
    op.drop_table("old_anchors")
