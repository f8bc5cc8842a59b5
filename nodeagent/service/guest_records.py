"""What the journal says of a lease's guests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from nodeagent.domain.container import Container, Engine
from nodeagent.domain.lease import Anchor
from nodeagent.domain.records import EffectRecord, EffectState
from nodeagent.service.effects import Arguments, Evidence

GUEST = "guest"


@dataclass(frozen=True, slots=True)
class Guest:
    """One entry, read. *asker* is pid and start time of who took it, until a container counts instead.

    *ending*: why it is being ended. *ticket* is the digest.
    """

    lease: int
    number: int
    held: Container
    asker: tuple[int, int] | None
    deadline_ns: int
    armed: bool
    ending: str | None
    ticket: str | None
    request_id: str | None
    entry: EffectRecord

    @property
    def state(self) -> str:
        """``starting`` until something was seen to run in it, ``ending`` once it is not to be there."""
        if self.ending is not None:
            return "ending"
        return "running" if self.armed else "starting"


def anchored(anchor: Anchor, held: Container) -> dict[str, Any]:
    """The part of a guest's arguments that says what it lives by."""
    return {
        "engine": held.engine,
        "libc": held.libc,
        "start_seconds": held.start_seconds,
        "restarts": held.restarts,
        "deadline_ns": anchor.deadline_ns,
        "pid": anchor.pid,
        "start_time": anchor.start_time,
    }


def container_of(arguments: Arguments, evidence: Evidence) -> Container:
    """The guest's container, with its id once one is bound."""
    named = ("libc", "start_seconds", "restarts")
    held = Container(Engine(arguments["engine"]), **{name: arguments[name] for name in named})
    return replace(held, id=evidence.get("container"))


def guests_in(journal: Iterable[EffectRecord]) -> list[Guest]:
    """Those that are there, or on their way in or out."""
    return [_guest(one) for one in journal if one.kind == GUEST and one.state is not EffectState.UNDONE]


def _guest(entry: EffectRecord) -> Guest:
    told: Arguments = entry.arguments
    evidence: Evidence = entry.evidence or {}
    started = told["start_time"]
    return Guest(
        lease=entry.lease,
        number=int(told["guest"]),
        held=container_of(told, evidence),
        asker=None if told["pid"] is None or started is None else (int(told["pid"]), int(started)),
        deadline_ns=int(told["deadline_ns"]),
        armed=bool(evidence.get("armed")),
        ending=evidence.get("ending"),
        ticket=evidence.get("ticket"),
        request_id=told["request_id"],
        entry=entry,
    )
