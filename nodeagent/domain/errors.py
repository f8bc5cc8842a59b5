"""The faults that the agent's layers raise. A normal "no" is a `Refusal`, never one of these.

::

    AgentError
    ├── InvalidField        a request or setting that can never be right; names the field
    ├── NotAllowed          the caller may not do this
    │   └── InLease         it is in a lease already, and may be its guest
    ├── UnknownThing        there is no such lease, device or effect
    ├── StaleLease          the lease ended; its id fences the caller out
    ├── KeyReused           a request id came again with another body
    ├── TooMany             the caller is over its quota or rate
    ├── LedgerUnavailable   the ledger is read-only, full or damaged
    ├── LedgerConflict      the ledger's own rules refused rows: held already, over a pool, unknown device
    ├── IllegalMove         a lease or slice cannot go to that state from where it is: a bug
    └── OutsideFault        the kernel or another outside thing said no; names its path
        └── Vanished        it went while it was worked on, which is its owner's right
"""

from __future__ import annotations


class AgentError(Exception):
    """Parent of every fault the agent raises on purpose."""


class InvalidField(AgentError):
    """*field* holds something that can never be right."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field = field
        self.why = why


class NotAllowed(AgentError):
    """The caller is known and may not do this."""


class InLease(NotAllowed):
    """The caller is in *lease*, its own: what it asks for it may have there alone."""

    def __init__(self, lease: int, why: str) -> None:
        super().__init__(why)
        self.lease = lease


class UnknownThing(AgentError):
    """There is no such lease, device or effect."""


class StaleLease(AgentError):
    """The lease has ended: whoever still acts on it is fenced out."""


class KeyReused(AgentError):
    """A request id came again with another body."""


class TooMany(AgentError):
    """The caller is over one of its limits; *retry_after* is in seconds."""

    def __init__(self, why: str, retry_after: float) -> None:
        super().__init__(why)
        self.retry_after = retry_after


class LedgerUnavailable(AgentError):
    """The ledger takes no grants now: read-only, full or damaged."""


class LedgerConflict(AgentError):
    """The ledger's own rules refused rows that would hold a thing twice or over its limit."""


class IllegalMove(AgentError):
    """A lease or slice cannot go there from the state that it is in."""


class OutsideFault(AgentError):
    """The kernel, or another thing outside the agent, said no. Names the path and the likely cause."""

    def __init__(self, path: object, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path
        self.why = why


class Vanished(OutsideFault):
    """A thing that is somebody else's to remove was removed between two steps."""
