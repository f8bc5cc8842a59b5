"""The agent without what forbids a double grant: primary key, triggers, lock and transaction.

It exists to show that `contention.py` can find a conflict: a test that cannot fail proves nothing.
"""

from __future__ import annotations

import argparse
import sqlite3
from contextlib import closing
from pathlib import Path

from nodeagent import config as settings
from nodeagent import wiring
from nodeagent.adapters.clock import SystemClock
from nodeagent.api.server import AgentServer, Hooks, ServerSettings
from nodeagent.ledger.ledger import Ledger
from nodeagent.ledger.migrate import migrate
from nodeagent.wiring import graph


class NoLock:
    """Acquired by everyone at once."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        return True

    def release(self) -> None:
        return None


class MutantLedger(Ledger):
    """Neither lock nor transaction: every statement stands alone."""

    def __init__(self, path: Path, clock: SystemClock) -> None:
        super().__init__(path, clock, lock=NoLock(), begin="SELECT 1")


def strip(path: Path) -> None:
    """Take the rules out of the schema."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("DROP TABLE held_cus")
        connection.execute(
            "CREATE TABLE held_cus (device TEXT NOT NULL, epoch INTEGER NOT NULL, cu INTEGER NOT NULL,"
            " slice INTEGER REFERENCES slices (id)) STRICT"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--state-dir", type=Path, required=True)
    given = parser.parse_args()
    given.state_dir.mkdir(mode=0o700)
    ledger = given.state_dir / wiring.LEDGER
    migrate(ledger)
    strip(ledger)
    graph.Ledger = MutantLedger  # type: ignore[misc, assignment]
    config = settings.Config().overridden(socket=given.socket, state_dir=given.state_dir)
    built = wiring.build(config, wiring.simulated_node("mi300x-spx", given.state_dir))
    server = ServerSettings(socket=given.socket, classify=wiring.classifier(config))
    AgentServer(lambda: built.app, server, Hooks(start=built.start, stop=built.stop)).run()


if __name__ == "__main__":
    main()
