"""A lease's ticket: what a container that shows it may have of the GPU.

Only the ticket's digest is kept anywhere. It counts once; labels without it are hints that nobody believes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from nodeagent.domain.container import TICKET_LABEL
from nodeagent.domain.docker_body import Object, mapping, objects, text, texts
from nodeagent.domain.errors import InvalidField

_OURS = "gpulease."
_TOKEN = re.compile(r"[0-9a-f]{32}")
_CDI = re.compile(r"nodeagent\.local/lease=([0-9a-f]{32})")


@dataclass(frozen=True, slots=True)
class Mount:
    """A bind mount of a lease: the host's *source* at *target*."""

    source: str
    target: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class Ticket:
    """What one lease gives the container that shows its ticket. Paths are the host's.

    *seccomp* is the profile that it must have, as JSON whose keys are sorted; None: any without a listener.
    """

    lease: int
    cgroup_parents: frozenset[str] = frozenset()  # none: the engine's own parent
    devices: frozenset[str] = frozenset()
    mounts: frozenset[Mount] = field(default_factory=frozenset)
    seccomp: str | None = None


def ticket_from(record: Any) -> Ticket:
    """Read the agent's *record* of a ticket, a JSON object.

    Raises:
        InvalidField: it is not what the agent writes.
    """
    fields = mapping("ticket", record)
    lease = fields.get("lease")
    if not isinstance(lease, int):
        raise InvalidField("ticket", "it names no lease")
    try:
        mounts = frozenset(Mount(*map(_checked, mount)) for mount in fields["mounts"])
        profile = fields.get("seccomp")
        return Ticket(
            lease,
            frozenset(fields["cgroup_parents"]),
            frozenset(fields["devices"]),
            mounts,
            None if profile is None else canonical(mapping("seccomp", profile)),
        )
    except (KeyError, TypeError) as wrong:
        raise InvalidField("ticket", f"it is not the agent's: {wrong!r}") from None


def canonical(document: Object) -> str:
    """*document* as text that is the same for the same JSON, and for no other: ``1`` is not ``true``."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def _checked(part: Any) -> Any:
    if not isinstance(part, str | bool):
        raise TypeError("a mount holds a number or an object")
    return part


def digest(token: str) -> str:
    """The name under which the agent keeps *token*."""
    return hashlib.sha256(token.encode()).hexdigest()


def token_in(create: Object) -> str | None:
    """The one ticket that the body of a create shows, by label or as the name of a CDI device; None without.

    Raises:
        InvalidField: it shows several, or none that could be one, or claims a lease without a ticket.
    """
    labels = mapping("Labels", create.get("Labels"))
    shown = set(_cdi_tokens(create))
    if TICKET_LABEL in labels:
        shown.add(text(TICKET_LABEL, labels[TICKET_LABEL]))
    if len(shown) > 1:
        raise InvalidField(TICKET_LABEL, "a container has one ticket")
    if any(name.lower().startswith(_OURS) for name in labels) and not shown:
        raise InvalidField("Labels", f"labels `{_OURS}…` are `gpulease docker run`'s, with a ticket")
    token = next(iter(shown), None)
    if token is not None and not _TOKEN.fullmatch(token):
        raise InvalidField(TICKET_LABEL, "it is no ticket")
    return token


def by_cdi(create: Object) -> bool:
    """Whether a container shows its ticket as a CDI device, whatever its labels."""
    return any(_cdi_tokens(create))


def token_of(request: Object) -> str | None:
    """The ticket in the one CDI device that an entry of DeviceRequests names; None where it is another's."""
    names = texts("DeviceIDs", request.get("DeviceIDs"))
    if request.get("Driver") != "cdi" or len(names) != 1:
        return None
    name = _CDI.fullmatch(names[0])
    return name[1] if name else None


def _cdi_tokens(create: Object) -> Iterator[str]:
    host = mapping("HostConfig", create.get("HostConfig"))
    for request in objects("DeviceRequests", host.get("DeviceRequests")):
        token = token_of(request)
        if token is not None:
            yield token
