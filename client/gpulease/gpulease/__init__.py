"""Take, use and give back slices of this node's AMD GPUs. Standard library only."""

from __future__ import annotations

from gpulease.client import Client
from gpulease.errors import (
    AgentUnhealthy,
    AgentUnreachable,
    AnswerError,
    BadRequest,
    ForeignServer,
    GpuleaseError,
    InvalidField,
    KeyReused,
    NotAllowed,
    NotGranted,
    Quarantined,
    Refused,
    Stale,
    TooMany,
    Unknown,
    UsageError,
)
from gpulease.models import Device, Event, Free, Holder, Inside, Lease, Node, Quota, Slice

__version__ = "0.1.0"

__all__ = [
    "AgentUnhealthy",
    "AgentUnreachable",
    "AnswerError",
    "BadRequest",
    "Client",
    "Device",
    "Event",
    "ForeignServer",
    "Free",
    "GpuleaseError",
    "Holder",
    "Inside",
    "InvalidField",
    "KeyReused",
    "Lease",
    "Node",
    "NotAllowed",
    "NotGranted",
    "Quarantined",
    "Quota",
    "Refused",
    "Slice",
    "Stale",
    "TooMany",
    "Unknown",
    "UsageError",
]
