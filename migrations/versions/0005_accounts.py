"""The Slurm accounts of jobs' leases, for quotas.

A table of its own: `leases` stays as it was, so that sidecars of it are read by the version before, too.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "accounts",
        sa.Column("lease", sa.Integer(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["lease"], ["leases.id"], name=op.f("fk_accounts_lease"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("lease", name=op.f("pk_accounts")),
        sqlite_strict=True,
    )
