"""Quotas: what those whom one counts together may hold at once, of what was placed and not of what was asked.

So a percentage and a whole device are bytes, CUs and queue slots before they are compared: HAMi counts the
memory of a namespace likewise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from nodeagent.domain.lease import HolderKind, PlacedSlice
from nodeagent.domain.sizes import size_text


class Resource(StrEnum):
    """What a quota bounds: the names of `Use`'s and `Limits`' fields, in which order they are compared."""

    LEASES = "leases"
    VRAM_BYTES = "vram_bytes"
    CUS = "cus"
    QUEUE_SLOTS = "queue_slots"


_NOUNS = {
    Resource.LEASES: "leases",
    Resource.VRAM_BYTES: "VRAM",
    Resource.CUS: "CUs",
    Resource.QUEUE_SLOTS: "queue slots",
}


@dataclass(frozen=True, slots=True)
class Use:
    """What is held, of each resource. *cus*: those that nobody else has, so none of a device's shared set."""

    leases: int = 0
    vram_bytes: int = 0
    cus: int = 0
    queue_slots: int = 0

    def __add__(self, other: Use) -> Use:
        return Use(
            self.leases + other.leases,
            self.vram_bytes + other.vram_bytes,
            self.cus + other.cus,
            self.queue_slots + other.queue_slots,
        )

    def of(self, resource: Resource) -> int:
        return int(getattr(self, resource))


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that may be held, of each resource; None: as much as there is."""

    leases: int | None = None
    vram_bytes: int | None = None
    cus: int | None = None
    queue_slots: int | None = None

    def exceeded(self, used: Use, asked: Use) -> Resource | None:
        """The first resource of which *asked* beside *used* is too much; never one that is not asked."""
        for one in Resource:
            most, more = self.of(one), asked.of(one)
            if most is not None and more and used.of(one) + more > most:
                return one
        return None

    def of(self, resource: Resource) -> int | None:
        most: int | None = getattr(self, resource)
        return most


def use_of(placed: Sequence[PlacedSlice]) -> Use:
    """What one lease of *placed* holds; one without slices, as an observed one, holds nothing."""
    return Use(
        leases=1 if placed else 0,
        vram_bytes=sum(one.vram_bytes for one in placed),
        cus=sum(len(one.cus) for one in placed if not one.shared),
        queue_slots=sum(one.queue_slots for one in placed),
    )


@dataclass(frozen=True, slots=True)
class Holding:
    """What a lease holds as the ledger has it, of a holder's *uid* and *gid*."""

    lease: int
    uid: int
    gid: int
    kind: HolderKind
    account: str | None
    use: Use


@dataclass(frozen=True, slots=True)
class Payer:
    """For whom a lease counts. *groups*: those of the groups which quotas name that the user belongs to."""

    uid: int  # the owner of a subordinate one
    groups: frozenset[int]
    kind: HolderKind
    account: str | None = None  # Slurm's, of a job


@dataclass(frozen=True, slots=True)
class Held:
    """What a lease holds, and for whom it counts."""

    lease: int
    payer: Payer
    use: Use


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom a quota counts: those of whom everything holds that is given.

    They are counted together, but for *each*: then every user by itself, those of *but* not at all.
    """

    user: int | None = None
    each: bool = False
    but: frozenset[int] = frozenset()
    group: int | None = None
    account: str | None = None
    kind: HolderKind | None = None

    def covers(self, payer: Payer) -> bool:
        return (
            self.user in (None, payer.uid)
            and payer.uid not in self.but
            and (self.group is None or self.group in payer.groups)
            and self.account in (None, payer.account)
            and self.kind in (None, payer.kind)
        )

    def together(self, payer: Payer, other: Payer) -> bool:
        """Whether what *other* holds counts beside what *payer* does, which is covered."""
        return self.covers(other) and (not self.each or payer.uid == other.uid)


@dataclass(frozen=True, slots=True)
class Quota:
    """*limits* for a *subject*; *name* is the site's words for it."""

    name: str
    subject: Subject
    limits: Limits

    def used(self, payer: Payer, held: Iterable[Held]) -> Use:
        """What counts beside what *payer* is to hold."""
        return sum((one.use for one in held if self.subject.together(payer, one.payer)), Use())


@dataclass(frozen=True, slots=True)
class Breach:
    """What would be too much: *asked* beside *used*, where *most* is the limit. *leases* are in the way."""

    rule: str  # quota or class, for people
    resource: Resource
    used: int
    asked: int
    most: int
    leases: tuple[int, ...]

    @property
    def never(self) -> bool:
        """Whether it is too much even where nothing else is held, so that waiting is in vain."""
        return self.asked > self.most

    @property
    def why(self) -> str:
        """For who asked: which rule, what is held of it already, and what it allows."""
        used, asked, most = (_told(self.resource, number) for number in (self.used, self.asked, self.most))
        beside = "" if self.never else f", {used} held"
        return f"{self.rule}, {_NOUNS[self.resource]}: {asked} asked{beside}, {most} allowed"


def breach(quotas: Iterable[Quota], payer: Payer, asked: Use, held: Sequence[Held]) -> Breach | None:
    """The first of *quotas* that *payer* would exceed by *asked* beside *held*: all that apply must hold."""
    found: Breach | None = None
    for quota in quotas:
        if not quota.subject.covers(payer):
            continue
        used = quota.used(payer, held)
        if resource := quota.limits.exceeded(Use(), asked):  # for ever: of all breaches the one to tell
            return _breach(quota, resource, payer, asked, used, held)
        if found is None and (resource := quota.limits.exceeded(used, asked)):
            found = _breach(quota, resource, payer, asked, used, held)
    return found


def _breach(
    quota: Quota, resource: Resource, payer: Payer, asked: Use, used: Use, held: Iterable[Held]
) -> Breach:
    beside = (one for one in held if quota.subject.together(payer, one.payer) and one.use.of(resource))
    most = quota.limits.of(resource)
    return Breach(
        f"quota of {quota.name}",
        resource,
        used.of(resource),
        asked.of(resource),
        0 if most is None else most,
        tuple(sorted(one.lease for one in beside)),
    )


def _told(resource: Resource, number: int) -> str:
    return size_text(number) if resource is Resource.VRAM_BYTES else str(number)
