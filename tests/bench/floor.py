"""The floor below a grant and a release: the agent's gunicorn worker and Flask, and the least to do there.

A grant is a POST of the same body, one transaction of one row in SQLite with the ledger's own settings (so
one fdatasync), and the lease's cgroup made; a release marks the row and takes the cgroup as the agent does.
Neither looks at what it is sent. `POST /nothing` and `GET /nothing` do nothing at all.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import threading
from pathlib import Path
from typing import Any

from flask import Flask, Response, request

from nodeagent import config as settings
from nodeagent import wiring
from nodeagent.adapters.cgroup_mount import find_mount
from nodeagent.api.server import AgentServer, Hooks, ServerSettings
from nodeagent.ledger.engine import connect

TABLE = "leases (id INTEGER PRIMARY KEY, state TEXT NOT NULL, request TEXT NOT NULL) STRICT"


class Leases:
    """Rows and cgroups, and no more."""

    def __init__(self, state: Path) -> None:
        self._database = state / "floor.sqlite3"
        mount = find_mount()
        self._cgroups = None if mount is None or os.geteuid() != 0 else mount / wiring.instance(state)
        self._stem = wiring.stem(state)
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection

    def open(self) -> None:
        self._database.touch()
        self._connection = connect(self._database)
        self._connection.execute(f"CREATE TABLE IF NOT EXISTS {TABLE}")
        if self._cgroups is not None:
            self._cgroups.mkdir(exist_ok=True)

    def grant(self, body: Any) -> int:
        lease = self._write("INSERT INTO leases (state, request) VALUES ('active', ?)", str(body))
        if self._cgroups is not None:
            self._cgroup(lease).mkdir()
        return lease

    def release(self, lease: int) -> None:
        if self._cgroups is not None:
            (self._cgroup(lease) / "cgroup.freeze").write_text("1")
            self._cgroup(lease).rmdir()
        self._write("UPDATE leases SET state = 'released' WHERE id = ?", lease)

    def _cgroup(self, lease: int) -> Path:
        assert self._cgroups is not None
        return self._cgroups / f"{self._stem}-{lease}.slice"

    def _write(self, statement: str, value: Any) -> int:
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            done = self._connection.execute(statement, (value,))
            self._connection.execute("COMMIT")
            return done.lastrowid or 0


def application(leases: Leases) -> Flask:
    app = Flask("floor", static_folder=None)

    @app.post("/v1/leases")
    def grant() -> tuple[dict[str, Any], int]:
        return {"id": leases.grant(request.get_json()), "state": "active"}, 201

    @app.delete("/v1/leases/<int:lease>")
    def release(lease: int) -> dict[str, Any]:
        leases.release(lease)
        return {"id": lease, "state": "released"}

    @app.route("/nothing", methods=["GET", "POST"])
    def nothing() -> Response:
        request.get_data()
        return Response("{}", content_type="application/json")

    @app.get("/readyz")
    def ready() -> Response:
        return Response("{}", content_type="application/json")

    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--state-dir", type=Path, required=True)
    given = parser.parse_args()
    given.state_dir.mkdir(mode=0o700, exist_ok=True)
    leases = Leases(given.state_dir)
    config = settings.Config().overridden(socket=given.socket, state_dir=given.state_dir)
    server = ServerSettings(socket=given.socket, classify=wiring.classifier(config))
    AgentServer(lambda: application(leases), server, Hooks(start=leases.open)).run()


if __name__ == "__main__":
    main()
