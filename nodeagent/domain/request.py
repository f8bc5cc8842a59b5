"""What a caller asks for, already of the right types and within the fields' own bounds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from nodeagent.domain.guarantee import Requirement


class Shape(StrEnum):
    EVEN = "even"  # whole aligned rows: every shader engine gets the same
    EXACT = "exact"  # the asked count, in the best arrangement


class Policy(StrEnum):
    BINPACK = "binpack"
    SPREAD = "spread"
    TOPOLOGY = "topology"  # the group of devices with the most XGMI links
    EXCLUSIVE = "exclusive"  # only idle devices, and nobody joins


class Priority(StrEnum):
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"

    def above(self, other: Priority) -> bool:
        """Whether it comes before *other*."""
        every = list(Priority)
        return every.index(self) < every.index(other)


@dataclass(frozen=True, slots=True)
class SliceRequest:
    """*count* slices alike, each on a device of its own.

    Of cus, cu_percent and cu_shared at most one is set, of vram_bytes and vram_percent at most one.
    None of all five asks for the whole device: with *partition* for one that is a partition of a card.
    """

    count: int = 1
    cus: int | None = None
    cu_percent: float | None = None  # 0 < p <= 100
    cu_shared: bool = False
    vram_bytes: int | None = None
    vram_percent: float | None = None  # 0 < p <= 100
    queue_slots: int | None = None
    shape: Shape = Shape.EVEN
    device: tuple[str, ...] = ()  # key, PCI address, uuid or alias in any spelling that a tool prints
    not_device: tuple[str, ...] = ()
    type: tuple[str, ...] = ()  # exact product or gfx name, or a glob
    not_type: tuple[str, ...] = ()
    partition: bool = False

    @property
    def whole(self) -> bool:
        return not self.cu_shared and all(
            asked is None for asked in (self.cus, self.cu_percent, self.vram_bytes, self.vram_percent)
        )


@dataclass(frozen=True, slots=True)
class Request:
    """The slices of one lease, and what holds for all of them."""

    slices: tuple[SliceRequest, ...] = (SliceRequest(),)
    placement: Policy = Policy.BINPACK
    numa_bind: bool = False
    link_bind: bool = False
    require: Requirement = Requirement()
    priority: Priority = Priority.NORMAL
    cdi: bool = False  # containers are given the lease as a CDI device
    queue_priority: Priority = Priority.NORMAL  # of its hardware queues
    class_name: str | None = None
