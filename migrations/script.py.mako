"""${message}

A migration never imports the tables or triggers of the code: it says what was true in its time. Batch mode
drops a table's triggers without a word: create them again.
"""

from __future__ import annotations

from alembic import op
import sqlalchemy as sa
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}
