"""dockerd, found as its client finds it, and asked by its socket, in a hundredth of the client's time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from gpulease.client import quoted
from gpulease.containers.commandline import CommandLine
from gpulease.errors import AgentUnreachable, BreaksFence, EngineFailed, ForeignServer, NotAllowed
from gpulease.transport import Transport

_DEFAULT = "unix:///var/run/docker.sock"
_SECONDS = 10.0
UNMAPPED = "in a user namespace the group of the GPU's nodes is nobody's, and no program could open them"


class Daemon:
    """The dockerd behind a unix socket."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._transport = Transport(path, timeout=_SECONDS)

    def refuse_unfit(self, line: CommandLine) -> None:
        """Raise BreaksFence unless it is root's, and maps no users."""
        options = self._get("/info").get("SecurityOptions") or ()
        names = {part for one in options for part in str(one).split(",")}
        if "name=rootless" in names:
            raise BreaksFence(_rootless(self._path))
        if "name=userns" in names and line.last("--userns") != "host":
            raise BreaksFence(f"this docker maps its containers' users: {UNMAPPED}; add --userns=host")

    def image(self, name: str) -> Optional[Mapping[str, Any]]:
        """What it says of an image; None of one that it does not have."""
        return self._get(f"/images/{quoted(name)}/json") or None

    def _get(self, target: str) -> Mapping[str, Any]:
        try:
            answer = self._transport.call("GET", target)
        except ForeignServer:
            raise BreaksFence(_rootless(self._path)) from None
        except (AgentUnreachable, NotAllowed):
            raise EngineFailed(
                f"no docker answers at {self._path}: does it run, and may you use it?"
            ) from None
        if answer.status == 404:
            return {}
        try:
            found = json.loads(answer.body)
        except ValueError:
            found = None
        if answer.status != 200 or not isinstance(found, dict):
            why = found.get("message") if isinstance(found, dict) else None
            raise EngineFailed(f"docker at {self._path}: {why or f'status {answer.status}'}")
        return found


def _rootless(path: str) -> str:
    return (
        f"the docker at {path} is a user's own (rootless): its containers cannot be in a lease; use the "
        "node's docker, or gpulease podman"
    )


def daemon_of(line: CommandLine, environment: Mapping[str, str]) -> Daemon:
    """The daemon that docker's client would talk to.

    Raises:
        BreaksFence: one that is not behind a unix socket; it may be another machine's, and the lease is not.
    """
    endpoint = _endpoint(line, environment)
    if not endpoint.startswith("unix://"):
        raise BreaksFence(
            f"docker at {endpoint}: the lease is of this node's GPUs, and a container elsewhere gets none of "
            "them; use this node's docker by its socket"
        )
    return Daemon(endpoint[len("unix://") :])


def _endpoint(line: CommandLine, environment: Mapping[str, str]) -> str:
    """As docker's client has it: -H, --context, DOCKER_HOST, DOCKER_CONTEXT, the configured context."""
    given = {option.name: option.value for option in line.program_options}
    if "--host" in given:
        return given["--host"]
    configured = given.get("--config") or environment.get("DOCKER_CONFIG")
    directory = Path(configured or Path(environment.get("HOME") or "/", ".docker"))
    context = given.get("--context")
    if context is None and environment.get("DOCKER_HOST"):
        return environment["DOCKER_HOST"]
    context = (
        context or environment.get("DOCKER_CONTEXT") or _read(directory / "config.json", "currentContext")
    )
    if context in (None, "", "default"):
        return environment.get("DOCKER_HOST") or _DEFAULT
    import hashlib

    name = hashlib.sha256(str(context).encode()).hexdigest()
    host = _read(directory / "contexts/meta" / name / "meta.json", "Endpoints", "docker", "Host")
    if host is None:
        raise EngineFailed(f"docker has no context {context}")
    return host


def _read(path: Path, *keys: str) -> Optional[str]:
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
        for key in keys:
            found = found[key]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return found if isinstance(found, str) else None
