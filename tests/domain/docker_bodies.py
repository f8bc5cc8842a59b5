"""Requests as dockerd hands them to its plugin, and the node that they are judged on."""

from __future__ import annotations

import json
import posixpath
from typing import Any

from nodeagent.domain.docker_body import Request
from nodeagent.domain.docker_grounds import Grounds
from nodeagent.domain.docker_judge import read_body, why_not
from nodeagent.domain.docker_paths import CLOSED, READ_ONLY, Trees
from nodeagent.domain.docker_routes import Call, Route, route_of
from nodeagent.domain.docker_ticket import Mount, Ticket
from nodeagent.domain.errors import InvalidField

IMAGE = {"Image": "t:1", "Cmd": ["/bin/busybox", "true"]}
CREATE = "/v1.41/containers/create"
LINKS = {"/srv/u/link": "/dev/dri", "/srv/u/sock": "/run/docker.sock", "/srv/u/down": "/etc/docker"}
LEASED = "ab" * 32
TOKEN = "0123456789abcdef" * 2
TICKET = Ticket(
    lease=7,
    cgroup_parents=frozenset(["gpulease-7.slice"]),
    devices=frozenset(["/dev/kfd", "/dev/dri/renderD128"]),
    mounts=frozenset(
        [
            Mount("/run/nodeagent/containers/gpulease/7/limits", "/etc/gpulease/limits", read_only=True),
            Mount("/run/nodeagent/hook/usage/gpulease/7", "/run/gpulease/usage", read_only=False),
        ]
    ),
)
TREES = Trees((*CLOSED, "/srv/chroot/dev"), READ_ONLY, lambda path: LINKS.get(posixpath.normpath(path), path))
NODE = Grounds(TREES)
LENT = Grounds(TREES, leased=frozenset([LEASED]))
WITH_TICKET = Grounds(TREES, leased=frozenset([LEASED]), ticket=TICKET)


def request(body: Any, uri: str = CREATE, method: str = "POST", **headers: str | None) -> Request:
    """*body* as JSON, or as it is where it is bytes; a header that is None is left out."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    given = {"content_type": "application/json", "content_length": str(len(raw)), **headers}
    kept = {name.replace("_", "-"): value for name, value in given.items() if value is not None}
    return Request(method, uri, kept, raw)


def judged(asked: Request, grounds: Grounds = NODE) -> str | None:
    """Why *asked* is refused; None where it passes."""
    route = route_of(asked.method, asked.uri, buildkit=grounds.buildkit)
    if not isinstance(route, Route):
        return route
    if route.call is Call.ORDINARY:
        return None
    try:
        return why_not(route, read_body(route, asked), grounds)
    except InvalidField as wrong:
        return str(wrong)


def create(host: dict[str, Any] | None = None, grounds: Grounds = NODE, **beside: Any) -> str | None:
    """Why a container with this HostConfig is refused."""
    return judged(request({**IMAGE, **beside, **({} if host is None else {"HostConfig": host})}), grounds)


def leased_host(**changed: Any) -> dict[str, Any]:
    """The HostConfig of `gpulease docker run` for `TICKET`."""
    return {
        "CgroupParent": "gpulease-7.slice",
        "Devices": [
            {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"}
            for path in sorted(TICKET.devices)
        ],
        "Mounts": [
            {"Type": "bind", "Source": mount.source, "Target": mount.target, "ReadOnly": mount.read_only}
            for mount in sorted(TICKET.mounts, key=lambda mount: mount.target)
        ],
        "GroupAdd": ["44", "109"],
        **changed,
    }
