"""Clients that cost little: each a process, its requests ready as bytes, a raw socket for each call."""

from __future__ import annotations

import gc
import json
import os
import re
import socket
import time
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ID = re.compile(rb'"id": ?(\d+)')
SMALL = {"cu_percent": 5, "vram_percent": 5}  # 64 of them fit on eight GPUs, with room between
SECONDS = 60  # the longest that a call may take
ASK_AGAIN_SECONDS = 0.005


def request(method: str, target: str, body: bytes = b"") -> bytes:
    """One HTTP/1.1 request."""
    head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    if method != "GET":
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"{head}\r\n".encode() + body


def grant_body(request_id: str, *, kind: str = "ttl", **slice_wanted: Any) -> bytes:
    """The body of a grant of one slice, for a day if nobody releases it."""
    anchor = {"kind": kind}
    body = {"request_id": request_id, "anchor": anchor, "slices": [slice_wanted], "ttl_seconds": 86_400}
    return json.dumps(body).encode()


class RefusedError(RuntimeError):
    """An answer that a benchmark cannot go on with."""


@dataclass(frozen=True, slots=True)
class Client:
    """Calls to one server."""

    socket: Path

    def call(self, sent: bytes) -> bytes:
        """The whole answer to the request *sent*. Raises RefusedError for another status than 2xx."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(SECONDS)
            connection.connect(os.fspath(self.socket))
            connection.sendall(sent)
            parts = []
            while part := connection.recv(1 << 18):
                parts.append(part)
        answer = b"".join(parts)
        if answer[9:10] != b"2":
            raise RefusedError(answer.decode(errors="replace"))
        return answer

    def timed(self, sent: bytes) -> tuple[float, bytes]:
        """The milliseconds of a call, and its answer."""
        began = time.perf_counter()
        answer = self.call(sent)
        return (time.perf_counter() - began) * 1e3, answer

    def get(self, target: str) -> float:
        """The milliseconds of a GET."""
        return self.timed(request("GET", target))[0]

    def grant(self, body: bytes) -> tuple[float, int]:
        """The milliseconds of a grant, and the lease's id."""
        took, answer = self.timed(request("POST", "/v1/leases", body))
        found = ID.search(answer)
        if found is None:
            raise RefusedError(answer.decode(errors="replace"))
        return took, int(found[1])

    def release(self, lease: int) -> float:
        """The milliseconds of a release until the lease is proved clean.

        Of a crowd only some may wait in the agent: the others are told "releasing", and ask again.
        """
        sent, began = request("DELETE", f"/v1/leases/{lease}?wait=5"), time.perf_counter()
        while b'"state":"released"' not in (answer := self.call(sent)):
            if b'"state":"releasing"' not in answer:
                raise RefusedError(answer.decode(errors="replace"))
            time.sleep(ASK_AGAIN_SECONDS)
        return (time.perf_counter() - began) * 1e3


@dataclass
class Crowd:
    """What many clients took, each of them granting and releasing without a pause: milliseconds."""

    grants: list[float] = field(default_factory=list)
    releases: list[float] = field(default_factory=list)


def crowd(socket_path: Path, clients: int, seconds: float) -> Crowd:
    """Let so many clients work for so long, all of them begun before the first asks."""
    context = get_context("fork")
    barrier = context.Barrier(clients)
    tasks = [(socket_path, barrier, seconds) for _ in range(clients)]
    readers, found = [], Crowd()
    for task in tasks:
        reading, writing = context.Pipe(duplex=False)
        child = context.Process(target=_work, args=(*task, writing))
        child.start()
        writing.close()
        readers.append((child, reading))
    try:
        for _, reading in readers:
            grants, releases, fault = reading.recv()
            if fault:
                raise RuntimeError(f"a client failed: {fault}")
            found.grants += grants
            found.releases += releases
    finally:
        for child, _ in readers:
            child.join(SECONDS)
            child.kill()
    return found


def _work(path: Path, barrier: Any, seconds: float, report: Any) -> None:
    gc.disable()
    client, me = Client(path), f"{os.getpid()}-{time.monotonic_ns()}"
    grants, releases, fault = [], [], ""
    barrier.wait(SECONDS)
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            took, lease = client.grant(grant_body(f"{me}-{len(grants)}", **SMALL))
            grants.append(took)
            releases.append(client.release(lease))
    except Exception as error:
        fault = f"{error!s:.2000}"
    report.send((grants, releases, fault))
