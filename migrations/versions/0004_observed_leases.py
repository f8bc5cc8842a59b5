"""Leases that are only observed, and drains that end by the wall clock of a later boot."""

# ruff: noqa: E501 (the trigger stands as SQLite keeps it)

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

TRIGGER = """CREATE TRIGGER leases_active_hold BEFORE UPDATE OF state ON leases WHEN NEW.state = 'active' AND (NOT EXISTS (SELECT 1 FROM slices WHERE lease = NEW.id) AND NOT EXISTS (SELECT 1 FROM effects WHERE lease = NEW.id AND kind = 'observed') OR EXISTS (SELECT 1 FROM slices AS s WHERE s.lease = NEW.id AND (s.state <> 'held'
    OR s.cu_count <> (SELECT count(*) FROM held_cus AS h WHERE h.device = s.device AND h.epoch = s.epoch
    AND h.slice IS CASE s.shared WHEN 1 THEN NULL ELSE s.id END))))
BEGIN SELECT RAISE(ABORT, 'illegal move: an active lease holds every CU of its slices'); END"""

# What there was before has no end in wall-clock time: it ends at a reboot, as it did.
_COPY = """
    INSERT INTO drains (device, reason, uid, until_ns, boot_id, at)
    SELECT device, reason, uid, until_ns, boot_id, at FROM old_drains
"""


def upgrade() -> None:
    op.execute("DROP TRIGGER leases_active_hold")
    op.execute(TRIGGER)
    op.rename_table("drains", "old_drains")
    op.create_table(
        "drains",
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("uid", sa.Integer(), nullable=False),
        sa.Column("until_ns", sa.Integer(), nullable=True),
        sa.Column("until_at", sa.REAL(), nullable=True),
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.Column("at", sa.REAL(), nullable=False),
        sa.PrimaryKeyConstraint("device", name=op.f("pk_drains")),
        sqlite_strict=True,
    )
    op.execute(_COPY)
    op.drop_table("old_drains")
