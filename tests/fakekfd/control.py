"""The fake kernel's state over a unix socket: one JSON object a line, one answer a line.

``{}`` gives the snapshot. ``{"limit": {gpu_id: bytes}, "free_delay": seconds}`` sets what the kernel allows
and how long a dead process's memory stays, ``{"forget": true}`` empties the log and begins the peaks anew;
then the snapshot is given.
"""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from pathlib import Path
from typing import Any

from tests.fakekfd.driver import Driver


def serve(driver: Driver, path: Path) -> None:
    """Answer at *path* from a thread, as long as this process lives."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for line in self.rfile:
                answer = _apply(driver, json.loads(line))
                self.wfile.write(json.dumps(answer).encode() + b"\n")

    server = socketserver.ThreadingUnixStreamServer(str(path), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def ask(path: Path, **changes: Any) -> dict[str, Any]:
    """The snapshot, after *changes*."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(json.dumps(changes).encode() + b"\n")
        return json.loads(client.makefile().readline())  # type: ignore[no-any-return]


def _apply(driver: Driver, changes: dict[str, Any]) -> dict[str, Any]:
    with driver.lock:
        for gpu_id, limit in changes.get("limit", {}).items():
            driver.gpus[int(gpu_id)].limit = limit
        if changes.get("forget"):
            driver.forget()
        driver.free_delay = changes.get("free_delay", driver.free_delay)
        return driver.snapshot()
