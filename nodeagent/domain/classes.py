"""Classes of requests: what a request that names one gets where it does not say, and at most."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from nodeagent.domain.guarantee import Requirement
from nodeagent.domain.lease import HolderKind, PlacedSlice
from nodeagent.domain.quota import Breach, Limits, Use, use_of
from nodeagent.domain.request import Policy, Priority, SliceRequest

CLASS_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,31}$"  # of names


@dataclass(frozen=True, slots=True)
class Class:
    """One class of the site's. *each*: what a slice gets that does not say; *limits* are of a whole lease.

    Who is among *users* or in one of *groups* may name it, for holders of *kinds*; empty ones: everybody.
    """

    name: str = ""
    users: frozenset[int] = frozenset()
    groups: frozenset[int] = frozenset()
    kinds: frozenset[HolderKind] = frozenset()
    default: bool = False  # of those who may name it, and name none
    each: SliceRequest = SliceRequest()
    placement: Policy = Policy.BINPACK
    ttl_seconds: int | None = None
    max_ttl_seconds: int | None = None
    limits: Limits = Limits()
    priority: Priority | None = None  # the highest; None: as who names no class
    require: Requirement = Requirement()

    def open_to(self, uid: int, groups: Collection[int], kind: HolderKind | None = None) -> bool:
        """Whether a user may name it, for a holder of *kind*; None: of some kind."""
        anybody = not self.users and not self.groups
        who = anybody or uid in self.users or not self.groups.isdisjoint(groups)
        return who and (not self.kinds or kind is None or kind in self.kinds)

    def filled(self, asked: SliceRequest) -> SliceRequest:
        """*asked* with what it does not say of its sizes; a compute partition has its own."""
        if asked.partition:
            return asked
        mine = self.each
        if asked.cus is None and asked.cu_percent is None and not asked.cu_shared:
            asked = replace(asked, cus=mine.cus, cu_percent=mine.cu_percent, cu_shared=mine.cu_shared)
        if asked.vram_bytes is None and asked.vram_percent is None:
            asked = replace(asked, vram_bytes=mine.vram_bytes, vram_percent=mine.vram_percent)
        return replace(asked, queue_slots=asked.queue_slots or mine.queue_slots)

    def over(self, placed: Sequence[PlacedSlice]) -> Breach | None:
        """Of what a lease of *placed* would have more than any of the class."""
        use = use_of(placed)
        if (resource := self.limits.exceeded(Use(), use)) is None:
            return None
        most = self.limits.of(resource)
        return Breach(f"class {self.name}", resource, 0, use.of(resource), 0 if most is None else most, ())


NO_CLASS = Class()
