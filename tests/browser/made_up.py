"""Answers of an agent that there is not: the browser asks for them as ever, and DevTools gives them."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from nodeagent.api.dashboard import dashboard_routes
from nodeagent.api.routes import Call
from tests.browser.chromium import SECONDS, Page

ORIGIN = "http://localhost:9/"
NOBODY: Any = None
READY = "document.querySelector('article')"


def device(number: int = 0, **changes: Any) -> dict[str, Any]:
    """An MI300X."""
    address = f"0000:{0xC1 + number:02x}:00.0"
    made = {
        "device": f"{address}/0",
        "epoch": 1,
        "pci": address,
        "partition": 0,
        "kfd_node": 2 + number,
        "render_node": f"renderD{128 + number}",
        "ordinal": number,
        "gpu_id": 5 + number,
        "unique_id": None,
        "uuid": None,
        "product": "AMD Instinct MI300X",
        "gfx": "gfx942",
        "cus": 304,
        "row": 32,
        "xccs": 8,
        "shader_engines": 4,
        "shader_arrays": 1,
        "pool": address,
        "vram_bytes": 192 << 30,
        "grantable_bytes": 190 << 30,
        "queue_slots": 24,
        "numa_node": 0,
        "hive": None,
        "peers": [],
        "compute_partition": "SPX",
        "memory_partition": "NPS1",
        "owner": "any",
        "state": "healthy",
        "reason": None,
        "free": {"cus": 304, "vram_bytes": 190 << 30, "queue_slots": 24},
    }
    return {**made, **changes}


def lease(number: int, cus: str | None, **changes: Any) -> dict[str, Any]:
    """An active lease of a slice on the first device."""
    one = {
        "device": device()["device"],
        "cus": cus,
        "cu_requested": 76,
        "cu_count": 76,
        "effective_cus": 64,
        "shared": False,
        "exclusive": False,
        "vram_bytes": 47 << 30,
        "told_bytes": None,
        "queue_slots": 6,
        "state": "held",
    }
    one |= changes.pop("slice", {})
    made = {
        "id": number,
        "state": "active",
        "masked": cus is None,
        "denied": None,
        "environment": None,
        "holder": {"kind": "process", "id": "4711", "uid": 1000},
        "anchor": None,
        "cgroup": None,
        "slices": [one],
        "guarantee": {"memory": "hook", "compute": "hook"},
        "container": None,
        "request_id": None,
        "priority": "normal",
        "queue": None,
        "created_at": "2031-05-04T10:00:00.000Z",
        "expires_at": "2031-05-04T12:00:00.000Z",
        "ended_at": None,
        "reason": None,
    }
    return {**made, **changes}


LATER = "2031-05-04T11:00:00.000Z"


def place(position: int, earliest: str | None = None) -> dict[str, Any]:
    return {"position": position, "earliest_at": earliest, "gives_up_at": "2031-05-05T10:00:00.000Z"}


def event(number: int, kind: str = "granted", **changes: Any) -> dict[str, Any]:
    made = {"id": number, "at": "2031-05-04T10:00:00.123Z", "kind": kind, "uid": 1000, "lease": 1001}
    return {**made, "device": None, "reason": None, "data": None, **changes}


def a_busy_node() -> dict[str, Any]:
    """Shared, quarantined and others' slices, a queue, a device that drains."""
    unclean = {"state": "quarantined", "cu_count": 16, "effective_cus": 16}
    shared = {"cu_count": 64, "shared": True, "vram_bytes": 8 << 30}
    leases = [
        lease(1001, "0-75"),
        lease(1002, "96-159", slice=shared, holder={"kind": "slurm", "id": "42", "uid": 1001}),
        lease(1003, "96-159", slice=shared, holder={"kind": "client", "id": "trainer", "uid": 1002}),
        lease(1004, None, guarantee=None, holder={"kind": "docker", "id": None, "uid": None}),
        lease(
            1005,
            "288-303",
            state="failed",
            slice=unclean,
        ),
        lease(1006, None, state="queued", slices=[], priority="low", queue=place(2)),
        lease(1007, None, state="queued", slices=[], priority="high", queue=place(1, LATER)),
    ]
    first = device(free={"cus": 72, "vram_bytes": 33 << 30, "queue_slots": 2})
    return {
        "/v1/caller": {"uid": 0, "administrator": True},
        "/v1/node": {
            "name": "gpu01",
            "machine": "this node",
            "version": "0.1.0",
            "ready": True,
            "reason": None,
        },
        "/v1/devices": {"devices": [first, device(1, state="draining", reason="fan (left)")], "next": None},
        "/v1/leases": {"leases": leases, "next": None},
        "/v1/events": {
            "events": [
                event(1),
                event(2, "quarantined", lease=1005, reason="12 MiB left", device=first["device"]),
            ],
            "next": 2,
        },
    }


@dataclass
class MadeUp:
    """*answers* by path, of status 200 where they say nothing else; *asked* is what the page asked for."""

    page: Page
    answers: dict[str, Any] = field(default_factory=a_busy_node)
    statuses: dict[str, int] = field(default_factory=dict)
    asked: list[tuple[str, str, Mapping[str, str], Any]] = field(default_factory=list)
    token: str | None = None
    _files: dict[str, Any] = field(default_factory=lambda: {one.path: one for one in dashboard_routes()})

    @classmethod
    @contextmanager
    def behind(cls, page: Page) -> Iterator[MadeUp]:
        made = cls(page)
        page.pipe.listeners.append(made._paused)
        page.call("Fetch.enable", patterns=[{"urlPattern": f"{ORIGIN}*"}])
        try:
            yield made
        finally:
            page.call("Page.navigate", url="about:blank")
            page.call("Fetch.disable")
            page.pipe.listeners.remove(made._paused)

    def open(self, fragment: str = "", ready: str = READY) -> None:
        self.page.open(ORIGIN + fragment, ready)

    def until_asked(self, start: str) -> None:
        """Wait until the page has asked for a path that starts so."""
        deadline = time.monotonic() + SECONDS
        while not any(path.startswith(start) for _, path, _, _ in self.asked):
            assert time.monotonic() < deadline, f"never asked for {start}"
            self.page.pipe.listen(0.1)

    def calls(self, method: str) -> list[tuple[str, Any]]:
        return [(path, body) for verb, path, _, body in self.asked if verb == method]

    def _paused(self, message: Mapping[str, Any]) -> None:
        if message["method"] != "Fetch.requestPaused":
            return
        request, number = message["params"]["request"], message["params"]["requestId"]
        parts = urlsplit(request["url"])
        headers = {name.lower(): value for name, value in request["headers"].items()}
        sent = request.get("postData")
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        self.asked.append((request["method"], target, headers, json.loads(sent) if sent else None))
        status, kind, more, body = self._answer(parts.path, headers)
        heads = {"Content-Type": kind, **more}
        self.page.send(
            "Fetch.fulfillRequest",
            requestId=number,
            responseCode=status,
            responseHeaders=[{"name": name, "value": value} for name, value in heads.items()],
            body=base64.b64encode(body).decode(),
        )

    def _answer(self, path: str, headers: Mapping[str, str]) -> tuple[int, str, Mapping[str, str], bytes]:
        if path in self._files:
            reply = self._files[path].handle(Call(NOBODY, {}, {}, None))
            return 200, self._files[path].media[0], reply.headers, str(reply.answer).encode()
        status, answer = self.statuses.get(path, 200), self.answers.get(path, {})
        if self.token is not None and headers.get("authorization") != f"Bearer {self.token}":
            status, answer = 401, {"code": "Unauthenticated", "detail": "a token is needed"}
        return status, "application/json", {}, json.dumps(answer).encode()
