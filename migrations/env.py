"""Run migrations on the connection that `nodeagent.ledger.migrate` hands over: never from a URL or a file."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from nodeagent.ledger.tables import metadata


def run(connection: Connection) -> None:
    # Batch mode copies a table, drops the old one, which foreign keys would forbid, and renames the copy,
    # which triggers of other tables that name it would. Inside a transaction the pragmas do nothing, so
    # they go to the driver's connection before one begins.
    driver = connection.connection.driver_connection
    if driver is None:
        raise RuntimeError("the connection is closed")
    driver.execute("PRAGMA foreign_keys=OFF")
    driver.execute("PRAGMA legacy_alter_table=ON")
    context.configure(
        connection=connection, target_metadata=metadata, render_as_batch=True, transaction_per_migration=False
    )
    with context.begin_transaction():
        context.run_migrations()
        broken = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
        if broken is not None:
            raise RuntimeError(f"{broken[0]}: row {broken[1]} refers to a missing row of {broken[2]}")


run(context.config.attributes["connection"])
