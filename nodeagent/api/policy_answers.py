"""What is answered of quotas and classes."""

from __future__ import annotations

from nodeagent.api.answers import Answer


class BoundAnswer(Answer):
    resource: str  # leases, vram_bytes, cus or queue_slots
    used: int
    most: int


class QuotaAnswer(Answer):
    """A quota that holds for the caller, with what counts towards it: also what others hold, of a total."""

    name: str
    bounds: list[BoundAnswer]


class QuotasAnswer(Answer):
    quotas: list[QuotaAnswer]


class ClassAnswer(Answer):
    """A class that the caller may name: what it gives who does not say, and at most. null: as without it."""

    name: str
    default: bool
    kinds: list[str]
    vram_bytes: int | None
    vram_percent: float | None
    cus: int | None
    cu_percent: float | None
    cu_shared: bool
    queue_slots: int | None
    shape: str
    placement: str
    ttl_seconds: int | None
    max_vram_bytes: int | None
    max_cus: int | None
    max_queue_slots: int | None
    max_ttl_seconds: int | None
    priority: str | None
    require: dict[str, str]


class ClassesAnswer(Answer):
    classes: list[ClassAnswer]
