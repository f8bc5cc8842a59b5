"""What holds a slice, as verified. Stronger tiers come first, and a request can demand a floor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

K = TypeVar("K", bound=StrEnum)


class Memory(StrEnum):
    KERNEL = "kernel"
    SUPERVISED = "supervised"
    HOOK = "hook"
    ADVISORY = "advisory"


class Compute(StrEnum):
    PARTITION = "partition"
    EXCLUSIVE = "exclusive"
    HOOK = "hook"
    MASK = "mask"
    NONE = "none"


class Visibility(StrEnum):
    CGROUP = "cgroup"
    ACL = "acl"
    ENVIRONMENT = "environment"


class Ipc(StrEnum):
    """Shared memory that programs name: System V, message queues, /dev/shm."""

    PRIVATE = "private"  # the lease's own: neighbours do not see it, and it ends with the lease
    SHARED = "shared"


class Queues(StrEnum):
    """What holds the priority of hardware queues at the lease's level."""

    SUPERVISED = "supervised"
    HOOK = "hook"
    NONE = "none"  # programs choose among all there are


@dataclass(frozen=True, slots=True)
class Hold:
    """What one means holds of a lease; None: nothing of this kind."""

    memory: Memory | None = None
    compute: Compute | None = None
    visibility: Visibility | None = None
    ipc: Ipc | None = None
    queues: Queues | None = None


@dataclass(frozen=True, slots=True)
class Guarantee:
    """The weakest of each kind over the lease's slices."""

    memory: Memory = Memory.ADVISORY
    compute: Compute = Compute.NONE
    visibility: Visibility = Visibility.ENVIRONMENT
    ipc: Ipc = Ipc.SHARED
    queues: Queues = Queues.NONE

    @property
    def for_one_command(self) -> bool:
        """Whether it holds only what the agent itself started, so that nothing else may enter: threat 19."""
        return self.memory is Memory.SUPERVISED or self.ipc is Ipc.PRIVATE

    def with_holds(self, holds: Iterable[Hold]) -> Guarantee:
        """The same lease, held by *holds* too: of each kind the strongest counts."""
        holds = tuple(holds)
        return Guarantee(
            memory=_strongest([self.memory, *(hold.memory for hold in holds)]) or self.memory,
            compute=_strongest([self.compute, *(hold.compute for hold in holds)]) or self.compute,
            visibility=_strongest([self.visibility, *(hold.visibility for hold in holds)]) or self.visibility,
            ipc=_strongest([self.ipc, *(hold.ipc for hold in holds)]) or self.ipc,
            queues=_strongest([self.queues, *(hold.queues for hold in holds)]) or self.queues,
        )


@dataclass(frozen=True, slots=True)
class Requirement:
    """The floor that a request demands; None demands nothing. Of queues nothing can be demanded."""

    memory: Memory | None = None
    compute: Compute | None = None
    visibility: Visibility | None = None
    ipc: Ipc | None = None

    def and_floor(self, floor: Requirement) -> Requirement:
        """Both this and *floor*: of each kind the stronger demand."""
        return Requirement(
            _strongest([floor.memory, self.memory]),
            _strongest([floor.compute, self.compute]),
            _strongest([floor.visibility, self.visibility]),
            _strongest([floor.ipc, self.ipc]),
        )

    def short_of(self, given: Guarantee) -> Requirement:
        """What of the demand is more than *given*."""

        def more(asked: K | None, got: K) -> K | None:
            return asked if asked is not None and _weaker(got, asked) else None

        return Requirement(
            more(self.memory, given.memory),
            more(self.compute, given.compute),
            more(self.visibility, given.visibility),
            more(self.ipc, given.ipc),
        )

    def helped_by(self, hold: Hold) -> bool:
        """Whether *hold* would meet some kind of the demand."""
        pairs: tuple[tuple[StrEnum | None, StrEnum | None], ...] = (
            (self.memory, hold.memory),
            (self.compute, hold.compute),
            (self.visibility, hold.visibility),
            (self.ipc, hold.ipc),
        )
        return any(asked and held and not _weaker(held, asked) for asked, held in pairs)

    def unmet(self, given: Guarantee) -> tuple[str, ...]:
        """What is demanded, and what is *given* instead, of each kind in which that is weaker."""
        short = self.short_of(given)
        return tuple(
            f"asks {name}={asked.value}, has {got.value}"
            for name, asked, got in (
                ("memory", short.memory, given.memory),
                ("compute", short.compute, given.compute),
                ("visibility", short.visibility, given.visibility),
                ("ipc", short.ipc, given.ipc),
            )
            if asked is not None
        )


def _strongest(kinds: Iterable[K | None]) -> K | None:
    return min((kind for kind in kinds if kind is not None), key=_rank, default=None)


def _rank(kind: StrEnum) -> int:
    return list(type(kind)).index(kind)


def _weaker(got: StrEnum, asked: StrEnum) -> bool:
    return _rank(got) > _rank(asked)
