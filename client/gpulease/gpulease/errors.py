"""What a call can end in besides its result, one class per thing a caller would do differently.

::

    GpuleaseError
    ├── UsageError             a value that can never be right, found before anything was sent
    │   └── BreaksFence        an option of a container engine's that no lease could hold
    ├── ImageUnfit             an image in which what was demanded cannot be had
    ├── EngineFailed           a container engine's client failed, or talks to another machine
    ├── AgentUnreachable       no answer by the deadline
    │   └── ForeignServer      something answers there that is neither root's nor ours
    └── AnswerError            the agent said no
        ├── Refused            409: it does not fit now; says why per device, who blocks, what next
        │   ├── NotGranted     it waited, and was cancelled or its time in the queue ran out
        │   └── Quarantined    it was released, but a slice of it is not proved clean
        ├── NotAllowed         403, or the socket may not be opened
        │   └── InLease        403: we run in a lease, and may have there what we ask for
        ├── Unknown            404: no such lease or device
        ├── Stale              410: the lease has ended
        ├── InvalidField       422: names the field
        │   └── KeyReused      422: a request id came again with another body
        ├── TooMany            429: over a limit of the caller's
        ├── BadRequest         any other 4xx
        └── AgentUnhealthy     5xx: the agent is there and cannot do it now
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

Problem = Mapping[str, object]
FAILED_BEFORE_START = 125  # exit code of `run` and `exec`; env(1) and docker use the same


class GpuleaseError(Exception):
    """Parent of everything this package raises on purpose. *code* is the API's word for it."""

    code = "Fault"
    exit_code = 5


class UsageError(GpuleaseError):
    """A value that can never be right."""

    code = "Usage"
    exit_code = 2


class BreaksFence(UsageError):
    """An option of a container engine's with which the container would not be held by its lease."""

    code = "BreaksFence"


class ImageUnfit(GpuleaseError):
    """What was demanded cannot be had in this image."""

    code = "ImageUnfit"
    exit_code = 3


class EngineFailed(GpuleaseError):
    """A container engine's client failed before there was a container."""

    code = "EngineFailed"


class AgentUnreachable(GpuleaseError):
    """No usable answer came by the deadline."""

    code = "AgentUnreachable"


class ForeignServer(AgentUnreachable):
    """The socket is served by a user who is neither root nor ourselves: nothing was sent."""

    code = "ForeignServer"


class AnswerError(GpuleaseError):
    """The agent answered no; *problem* is its answer as served."""

    code = "BadAnswer"

    def __init__(self, problem: Problem, *, status: int = 0, retry_after: Optional[float] = None) -> None:
        self.problem = problem
        self.status = status
        self.retry_after = retry_after
        self.code = str(problem.get("code") or self.code)
        self.detail = str(problem.get("detail") or problem.get("title") or f"HTTP status {status}")
        super().__init__(self.detail)


class Refused(AnswerError):
    """The normal no: it does not fit now."""

    code = "Refused"
    exit_code = 3

    @property
    def blockers(self) -> tuple[int, ...]:
        """Ids of the leases in the way."""
        return tuple(item for item in _list(self.problem, "blockers") if isinstance(item, int))

    @property
    def devices(self) -> tuple[Problem, ...]:
        """Per device: ``device``, ``code``, ``why`` and what else was served."""
        return tuple(item for item in _list(self.problem, "devices") if isinstance(item, Mapping))

    @property
    def earliest_at(self) -> Optional[str]:
        """When the first blocker ends, where any end is known."""
        return _text(self.problem, "earliest_at")

    @property
    def next(self) -> Optional[str]:
        """What to do about it."""
        return _text(self.problem, "next")


class NotGranted(Refused):
    """A request that waited, and was cancelled or not granted in its time."""

    code = "NotGranted"


class Quarantined(Refused):
    """A lease ended, but a slice of it is not proved clean: it is held back until it is."""

    code = "Quarantined"


class NotAllowed(AnswerError):
    code = "NotAllowed"
    exit_code = 4


class InLease(NotAllowed):
    """We run in a lease already: a container of ours may share that, and has none of its own."""

    code = "InLease"

    @property
    def lease(self) -> int:
        value = self.problem.get("lease")
        return value if isinstance(value, int) else 0


class Unknown(AnswerError):
    code = "UnknownThing"
    exit_code = 2


class Stale(AnswerError):
    code = "StaleLease"
    exit_code = 3


class InvalidField(AnswerError):
    code = "InvalidField"
    exit_code = 2

    @property
    def field(self) -> Optional[str]:
        return _text(self.problem, "field")


class KeyReused(InvalidField):
    code = "KeyReused"


class TooMany(AnswerError):
    code = "TooMany"
    exit_code = 3


class BadRequest(AnswerError):
    code = "BadRequest"
    exit_code = 2


class AgentUnhealthy(AnswerError):
    code = "NodeUnhealthy"


_BY_STATUS: Mapping[int, type[AnswerError]] = {
    403: NotAllowed,
    404: Unknown,
    409: Refused,
    410: Stale,
    422: InvalidField,
    429: TooMany,
}


def error_from(status: int, problem: Problem, retry_after: Optional[float] = None) -> AnswerError:
    """The error that an answer with *status* >= 300 and this problem body means."""
    kind = _BY_STATUS.get(status)
    if problem.get("code") == KeyReused.code:
        kind = KeyReused
    if problem.get("code") == InLease.code and isinstance(problem.get("lease"), int):
        kind = InLease
    if kind is None:
        kind = BadRequest if 400 <= status < 500 else AgentUnhealthy
    return kind(problem, status=status, retry_after=retry_after)


def _list(problem: Problem, name: str) -> tuple[object, ...]:
    value = problem.get(name)
    return tuple(value) if isinstance(value, (list, tuple)) else ()


def _text(problem: Problem, name: str) -> Optional[str]:
    value = problem.get(name)
    return value if isinstance(value, str) else None
