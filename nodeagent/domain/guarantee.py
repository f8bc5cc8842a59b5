"""What holds a slice, as verified. Stronger tiers come first, and a request can demand a floor."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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


@dataclass(frozen=True, slots=True)
class Guarantee:
    """The weakest of each kind over the lease's slices."""

    memory: Memory = Memory.ADVISORY
    compute: Compute = Compute.NONE
    visibility: Visibility = Visibility.ENVIRONMENT


@dataclass(frozen=True, slots=True)
class Requirement:
    """The floor that a request demands; None demands nothing."""

    memory: Memory | None = None
    compute: Compute | None = None
    visibility: Visibility | None = None

    def unmet(self, given: Guarantee) -> tuple[str, ...]:
        """The kinds, by name, in which *given* is weaker than demanded."""
        return tuple(
            name
            for name, asked, got in (
                ("memory", self.memory, given.memory),
                ("compute", self.compute, given.compute),
                ("visibility", self.visibility, given.visibility),
            )
            if asked is not None and _weaker(got, asked)
        )


def _weaker(got: StrEnum, asked: StrEnum) -> bool:
    order = list(type(asked))
    return order.index(got) > order.index(asked)
