"""What the agent says, typed. Unknown fields are kept in ``raw``, absent ones are None: versions differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

Raw = Mapping[str, Any]
LIVE_STATES = ("queued", "preparing", "active", "lost", "releasing")
ENDED_STATES = ("released", "failed", "cancelled")


@dataclass(frozen=True)
class Holder:
    """Who holds a lease. All None on a lease that is masked for us."""

    kind: Optional[str]
    id: Optional[str]
    uid: Optional[int]

    @classmethod
    def from_raw(cls, raw: Raw) -> Holder:
        return cls(kind=text(raw, "kind"), id=text(raw, "id"), uid=number(raw, "uid"))


@dataclass(frozen=True)
class Slice:
    """One slice of a lease. *cus* is in list syntax (``0-31,64``)."""

    device: str
    cus: Optional[str]
    cu_requested: Optional[int]
    cu_count: Optional[int]
    effective_cus: Optional[int]
    vram_bytes: Optional[int]
    told_bytes: Optional[int]  # what the lease's programs say they use
    queue_slots: Optional[int]
    state: Optional[str]
    raw: Raw = field(repr=False, compare=False)

    @classmethod
    def from_raw(cls, raw: Raw) -> Slice:
        return cls(
            device=text(raw, "device") or "?",
            cus=text(raw, "cus"),
            cu_requested=number(raw, "cu_requested"),
            cu_count=number(raw, "cu_count"),
            effective_cus=number(raw, "effective_cus"),
            vram_bytes=number(raw, "vram_bytes"),
            told_bytes=number(raw, "told_bytes"),
            queue_slots=number(raw, "queue_slots"),
            state=text(raw, "state"),
            raw=raw,
        )


@dataclass(frozen=True)
class Place:
    """What a request that waits can expect. None: the agent does not know, or not yet."""

    position: Optional[int]  # 1 is next
    earliest_at: Optional[str]
    gives_up_at: Optional[str]

    @classmethod
    def from_raw(cls, raw: Raw) -> Place:
        return cls(number(raw, "position"), text(raw, "earliest_at"), text(raw, "gives_up_at"))

    @property
    def turn(self) -> Optional[str]:
        if self.position is None:
            return None
        return "next" if self.position == 1 else f"number {self.position}"

    def __str__(self) -> str:
        facts = (self.turn, f"not before {self.earliest_at}" if self.earliest_at else None)
        return ", ".join(fact for fact in facts if fact)


@dataclass(frozen=True)
class Lease:
    """A lease. *environment* maps names to values, None meaning "unset"; None as a whole where masked."""

    id: int
    state: str
    masked: bool
    holder: Holder
    anchor: Raw
    slices: tuple[Slice, ...]
    guarantee: Raw
    denied: Optional[int]  # requests that the hook refused, as the lease's programs count
    environment: Optional[Mapping[str, Optional[str]]]
    cgroup: Optional[str]
    queue: Optional[Place]  # while it waits
    idle: Raw  # of an idle one: "since", "ends_at"
    created_at: Optional[str]
    expires_at: Optional[str]
    ended_at: Optional[str]
    reason: Optional[str]
    raw: Raw = field(repr=False, compare=False)

    @property
    def for_one_command(self) -> bool:
        """Whether the agent starts what runs in it, and lets nothing else in."""
        return self.guarantee.get("memory") == "supervised" or self.guarantee.get("ipc") == "private"

    @classmethod
    def from_raw(cls, raw: Raw) -> Lease:
        return cls(
            id=number(raw, "id") or 0,
            state=text(raw, "state") or "unknown",
            masked=raw.get("masked") is True,
            holder=Holder.from_raw(mapping(raw, "holder")),
            anchor=mapping(raw, "anchor"),
            slices=tuple(Slice.from_raw(item) for item in items(raw, "slices")),
            guarantee=mapping(raw, "guarantee"),
            denied=number(raw, "denied"),
            environment=_environment(raw),
            cgroup=text(raw, "cgroup"),
            queue=Place.from_raw(mapping(raw, "queue")) if mapping(raw, "queue") else None,
            idle=mapping(raw, "idle"),
            created_at=text(raw, "created_at"),
            expires_at=text(raw, "expires_at"),
            ended_at=text(raw, "ended_at"),
            reason=text(raw, "reason"),
            raw=raw,
        )

    @property
    def live(self) -> bool:
        return self.state not in ENDED_STATES


@dataclass(frozen=True)
class Free:
    """What a device has left: CUs as a count."""

    cus: Optional[int]
    vram_bytes: Optional[int]
    queue_slots: Optional[int]

    @classmethod
    def from_raw(cls, raw: Raw) -> Free:
        return cls(number(raw, "cus"), number(raw, "vram_bytes"), number(raw, "queue_slots"))


@dataclass(frozen=True)
class Device:
    """A card, or one compute partition of it."""

    key: str
    pci: Optional[str]
    partition: Optional[int]
    render_node: Optional[str]
    kfd_node: Optional[int]
    ordinal: Optional[int]  # ROCr's index
    card: Optional[str]
    gpu_id: Optional[int]
    hip_index: Optional[int]
    smi_index: Optional[int]
    slurm_index: Optional[int]
    unique_id: int
    uuid: Optional[str]
    product: Optional[str]
    gfx: Optional[str]
    cus: int
    row: Optional[int]
    vram_bytes: Optional[int]
    grantable_bytes: Optional[int]
    queue_slots: Optional[int]
    numa_node: Optional[int]
    hive: Optional[str]
    owner: str  # "any" also where the agent is too old to say
    state: str
    reason: Optional[str]
    free: Free
    raw: Raw = field(repr=False, compare=False)

    @classmethod
    def from_raw(cls, raw: Raw) -> Device:
        hive = raw.get("hive")
        return cls(
            key=text(raw, "device") or "?",
            pci=text(raw, "pci"),
            partition=number(raw, "partition"),
            render_node=text(raw, "render_node"),
            kfd_node=number(raw, "kfd_node"),
            ordinal=number(raw, "ordinal"),
            card=text(raw, "card"),
            gpu_id=number(raw, "gpu_id"),
            hip_index=number(raw, "hip_index"),
            smi_index=number(raw, "smi_index"),
            slurm_index=number(raw, "slurm_index"),
            unique_id=wide_number(raw, "unique_id"),
            uuid=text(raw, "uuid"),
            product=text(raw, "product"),
            gfx=text(raw, "gfx"),
            cus=number(raw, "cus") or 0,
            row=number(raw, "row"),
            vram_bytes=number(raw, "vram_bytes"),
            grantable_bytes=number(raw, "grantable_bytes"),
            queue_slots=number(raw, "queue_slots"),
            numa_node=number(raw, "numa_node"),
            hive=str(hive) if hive else None,
            owner=text(raw, "owner") or "any",
            state=text(raw, "state") or "unknown",
            reason=text(raw, "reason"),
            free=Free.from_raw(mapping(raw, "free")),
            raw=raw,
        )


@dataclass(frozen=True)
class Node:
    """The node and its agent. *machine* says whether it is real or which machine file stands in for it."""

    name: Optional[str]
    machine: Optional[str]
    version: Optional[str]
    ready: Optional[bool]
    reason: Optional[str]
    raw: Raw = field(repr=False, compare=False)

    @classmethod
    def from_raw(cls, raw: Raw) -> Node:
        ready = raw.get("ready")
        return cls(
            name=text(raw, "name"),
            machine=text(raw, "machine"),
            version=text(raw, "version"),
            ready=ready if isinstance(ready, bool) else None,
            reason=text(raw, "reason"),
            raw=raw,
        )


@dataclass(frozen=True)
class Event:
    """Who did what, when and why."""

    id: int
    kind: str
    at: Optional[str]
    uid: Optional[int]
    lease: Optional[int]
    device: Optional[str]
    reason: Optional[str]
    count: int
    raw: Raw = field(repr=False, compare=False)

    @classmethod
    def from_raw(cls, raw: Raw) -> Event:
        return cls(
            id=number(raw, "id") or 0,
            kind=text(raw, "kind") or "unknown",
            at=text(raw, "at"),
            uid=number(raw, "uid"),
            lease=number(raw, "lease"),
            device=text(raw, "device"),
            reason=text(raw, "reason"),
            count=number(raw, "count") or 1,
            raw=raw,
        )


@dataclass(frozen=True)
class Inside:
    """A container in a lease that was not taken for it. *container*: the engine's id, once it is known."""

    id: int
    engine: Optional[str]
    container: Optional[str]
    state: Optional[str]
    reason: Optional[str]

    @classmethod
    def from_raw(cls, raw: Raw) -> Inside:
        return cls(
            id=number(raw, "id") or 0,
            engine=text(raw, "engine"),
            container=text(raw, "container"),
            state=text(raw, "state"),
            reason=text(raw, "reason"),
        )


@dataclass(frozen=True)
class Bound:
    """How much of a resource counts towards a quota, and how much may."""

    resource: str
    used: int
    most: int


@dataclass(frozen=True)
class Quota:
    """A quota that holds for the caller; *name* says whom it counts."""

    name: str
    bounds: tuple[Bound, ...]
    raw: Raw = field(repr=False, compare=False)

    @classmethod
    def from_raw(cls, raw: Raw) -> Quota:
        return cls(
            name=text(raw, "name") or "?",
            bounds=tuple(
                Bound(text(one, "resource") or "?", number(one, "used") or 0, number(one, "most") or 0)
                for one in items(raw, "bounds")
            ),
            raw=raw,
        )


def text(raw: Raw, name: str) -> Optional[str]:
    value = raw.get(name)
    return value if isinstance(value, str) and value else None


def number(raw: Raw, name: str) -> Optional[int]:
    value = raw.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def wide_number(raw: Raw, name: str) -> int:
    """A 64-bit number, which JSON may carry as a string (decimal, or hexadecimal with 0x); 0 where absent."""
    value = raw.get(name)
    if isinstance(value, str):
        try:
            return int(value, 0)
        except ValueError:
            return 0
    return number(raw, name) or 0


def mapping(raw: Raw, name: str) -> Raw:
    value = raw.get(name)
    return value if isinstance(value, Mapping) else {}


def items(raw: Raw, name: str) -> tuple[Raw, ...]:
    value = raw.get(name)
    return tuple(item for item in value if isinstance(item, Mapping)) if isinstance(value, list) else ()


def _environment(raw: Raw) -> Optional[Mapping[str, Optional[str]]]:
    value = raw.get("environment")
    if not isinstance(value, Mapping):
        return None
    return {str(name): None if setting is None else str(setting) for name, setting in value.items()}
