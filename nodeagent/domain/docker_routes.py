"""Which of docker's calls are ordinary, which are judged by their bodies, and which are refused outright.

Only listed pairs of method and path pass: a call that a later docker adds is refused until it is listed here.
Paths are read as dockerd's router reads them: decoded once, with or without ``/v1.N``. Source: the routes in
moby's ``api/server/router``, 20.10 to 28.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote_to_bytes

OLDEST = 24  # API versions below take a HostConfig with the start of a container
BUILDKIT_REFUSED = "what BuildKit is asked for cannot be read here; build with DOCKER_BUILDKIT=0"
_VERSION = re.compile(r"/v1\.(\d{1,3})(?=/)")
_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


class Call(enum.Enum):
    """What a request asks dockerd for; all but ORDINARY are judged further."""

    ORDINARY = "ordinary"
    CREATE = "create"
    UPDATE = "update"
    EXEC = "exec"
    START = "start"
    RENAME = "rename"
    VOLUME = "volume"
    BUILD = "build"


@dataclass(frozen=True, slots=True)
class Route:
    """A listed call, with the options that its address carries, in order."""

    call: Call
    options: tuple[tuple[str, str], ...] = ()


def _listed(*patterns: str) -> re.Pattern[str]:
    """``{}`` is one part of a path, ``{*}`` one or more."""
    text = "|".join(patterns)
    return re.compile("(?:" + text.replace("{*}", ".+").replace("{}", "[^/]+") + ")")


_JUDGED = (
    (_listed("/containers/create"), Call.CREATE),
    (_listed("/containers/{}/update"), Call.UPDATE),
    (_listed("/containers/{}/exec"), Call.EXEC),
    (_listed("/containers/{}/start"), Call.START),
    (_listed("/containers/{}/rename"), Call.RENAME),
    (_listed("/volumes/create"), Call.VOLUME),
    (_listed("/build"), Call.BUILD),
)
_READ = _listed(
    "/(?:_ping|events|info|version|system/df)",
    "/(?:containers|images|networks|volumes|exec|distribution)/{*}",
    "/(?:networks|volumes)",
    "/(?:plugins|swarm|nodes|services|tasks|secrets|configs)(?:/{*})?",
)
_ORDINARY = {
    "GET": _READ,
    "HEAD": _READ,
    "OPTIONS": _listed("/{*}"),
    "POST": _listed(
        "/auth",
        "/commit",
        "/build/(?:prune|cancel)",
        "/containers/prune",
        "/containers/{}/(?:attach|kill|pause|resize|restart|stop|unpause|wait)",
        "/exec/{}/(?:resize|start)",
        "/images/(?:create|load|prune)",
        "/images/{*}/(?:push|tag)",
        "/networks/(?:create|prune)",
        "/networks/{}/(?:connect|disconnect)",
        "/volumes/prune",
    ),
    "PUT": _listed("/containers/{}/archive"),
    "DELETE": _listed("/(?:containers|networks|volumes)/{}", "/images/{*}"),
}
_BUILDKIT = _listed("/grpc", "/session")
_CLOSED = (
    (_BUILDKIT, BUILDKIT_REFUSED),
    (_listed("/plugins(?:/{*})?"), "a plugin of docker's may have any device"),
    (
        _listed("/(?:swarm|nodes|services|tasks|secrets|configs)(?:/{*})?"),
        "swarm starts containers where nobody judges them",
    ),
    (_listed("/containers/{}/checkpoints(?:/{*})?"), "a checkpoint brings open devices back"),
)


def route_of(method: str, uri: str, *, buildkit: bool = False) -> Route | str:
    """The listed call that ``METHOD uri`` is, or why it is refused.

    *buildkit* lets BuildKit's own calls pass unread, for a site whose daemon grants builds no devices.
    """
    address, _, query = uri.partition("?")
    path = _decoded(address)
    if path is None:
        return "the request's path is not one that docker's own clients write"
    versioned = _VERSION.match(path)
    if versioned and int(versioned[1]) < OLDEST:
        return f"docker's API before 1.{OLDEST} is not judged; use a newer client"
    path = path[versioned.end() :] if versioned else path
    if method == "POST":
        for pattern, call in _JUDGED:
            if pattern.fullmatch(path):
                return _with_options(call, query)
        if buildkit and _BUILDKIT.fullmatch(path):
            return Route(Call.ORDINARY)
    if method in _ORDINARY and _ORDINARY[method].fullmatch(path):
        return Route(Call.ORDINARY)
    return next(
        (why for pattern, why in _CLOSED if pattern.fullmatch(path)),
        "this call is not among those that are known to reach no GPU",
    )


def _decoded(address: str) -> str | None:
    """The path as the router sees it; None for one with two readings (``//``, ``..``, a whole URL)."""
    if not address.startswith("/") or _ESCAPE.search(address):
        return None
    try:
        path = unquote_to_bytes(address).decode("utf-8")
    except UnicodeDecodeError:
        return None
    if not path.isprintable() or {"", ".", ".."} & set(path[1:].split("/")):
        return None
    return path


def _with_options(call: Call, query: str) -> Route | str:
    if ";" in query or _ESCAPE.search(query):
        return "the request's options have two readings"
    return Route(call, tuple(parse_qsl(query, keep_blank_values=True)))
