"""What a container is started on: a lease of its own, or a place in the lease that we run in ourselves."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Optional

from gpulease.client import Client
from gpulease.containers.commandline import CommandLine
from gpulease.containers.placement import Placement
from gpulease.errors import BreaksFence, GpuleaseError, InLease
from gpulease.models import Lease, Raw, mapping, number
from gpulease.run import give_back
from gpulease.screen import Screen

# What a container that shares a lease may still be given; all else of ours is about a lease of its own.
_SHARING = frozenset(
    {"--require", "--wait", "--dry-run", "--lease-restart", "--lease-start-within", "--lease-request-id"}
)


@dataclass(frozen=True)
class Claim:
    """What is ours to give back; *guest* is None where that is the whole lease."""

    lease: int
    guest: Optional[int]
    guarantee: Raw
    placement: Optional[Placement]
    raw: Raw

    @classmethod
    def of(cls, lease: Lease) -> Claim:
        return cls(lease.id, None, lease.guarantee, Placement.of(lease), lease.raw)

    @classmethod
    def of_guest(cls, raw: Raw) -> Claim:
        told = mapping(raw, "container")
        return cls(
            number(raw, "lease") or 0,
            number(raw, "id") or 0,
            mapping(raw, "guarantee"),
            Placement.from_raw(told) if told else None,
            raw,
        )

    def __str__(self) -> str:
        held = ", ".join(f"{kind} {level}" for kind, level in self.guarantee.items())
        return f"lease {self.lease}{'' if self.guest is None else ', which this runs in'}: {held}"

    def give_back(self, client: Client, screen: Screen) -> None:
        """End it, in the end of whatever went wrong. The lease that we run in is not ours to end."""
        if self.guest is None:
            give_back(client, self.lease, screen)
            return
        try:
            client.give_back_guest(self.lease, self.guest)
        except GpuleaseError as failure:
            screen.line(f"gpulease: note: a container of lease {self.lease} is left to the agent: {failure}")


def be_guest(client: Client, line: CommandLine, fields: Mapping[str, Any], within: InLease) -> Claim:
    """Have the container in the lease that we run in.

    Raises:
        BreaksFence: an option asks for what only a lease of its own could have.
    """
    for option in line.ours:
        if option.name not in _SHARING:
            raise BreaksFence(
                f"{option.name}: this runs in lease {within.lease}, and the container shares what that has:"
                " leave it out"
            )
    return Claim.of_guest(client.host(within.lease, **_guest_fields(fields)))


def leave(client: Client, fields: Mapping[str, Any], within: InLease) -> None:
    """Give up being a guest, also where the answer was not heard: the same request finds it."""
    with suppress(GpuleaseError):
        claim = Claim.of_guest(client.host(within.lease, **_guest_fields(fields)))
        client.give_back_guest(claim.lease, claim.guest or 0)


def _guest_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: fields[name] for name in ("anchor", "require", "request_id") if fields.get(name) is not None
    }
