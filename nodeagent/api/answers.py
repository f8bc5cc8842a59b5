"""Response bodies. The OpenAPI document is made from these, and every answer is built through them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


def _tidy(schema: dict[str, Any]) -> None:
    schema.pop("title", None)
    for field in schema.get("properties", {}).values():
        field.pop("title", None)


class Answer(BaseModel):
    """A response object. Readers must accept fields that they do not know."""

    model_config = ConfigDict(frozen=True, json_schema_extra=_tidy)


class HolderAnswer(Answer):
    kind: str
    id: str | None
    uid: int | None


class AnchorAnswer(Answer):
    kind: str
    armed: bool
    ttl_seconds: int | None
    pid: int | None
    cgroup: str | None


class SliceAnswer(Answer):
    device: str
    cus: str | None  # list syntax
    cu_requested: int | None
    cu_count: int
    effective_cus: int | None
    shared: bool | None
    exclusive: bool | None
    vram_bytes: int
    told_bytes: int | None
    queue_slots: int
    state: str


class GuaranteeAnswer(Answer):
    memory: str
    compute: str
    visibility: str
    ipc: str
    queues: str


class ContainerDeviceAnswer(Answer):
    host: str
    inside: str


class MountAnswer(Answer):
    source: str
    target: str
    read_only: bool


class ContainerAnswer(Answer):
    """What the lease's container is to be started with."""

    engine: str | None
    id: str | None  # once one is bound
    cgroup_parent: str | None  # null: the engine's cgroups are elsewhere
    devices: list[ContainerDeviceAnswer]
    groups: list[int]
    mounts: list[MountAnswer]
    environment: dict[str, str | None]  # null value: unset
    labels: dict[str, str]  # the ticket only where the lease was asked for
    stop_timeout_seconds: int
    cdi: str | None
    seccomp: dict[str, Any] | None


class QueueAnswer(Answer):
    """What a request that waits can expect; null: not known, or not yet."""

    position: int | None  # 1 is next
    earliest_at: str | None
    gives_up_at: str | None


class IdleAnswer(Answer):
    """Since when a lease has done no work, and when it ends unless it does; null: it does not end by that."""

    since: str | None
    ends_at: str | None


class LeaseAnswer(Answer):
    """What is null on a lease with ``masked`` is hidden from this caller."""

    id: int
    state: str
    masked: bool
    holder: HolderAnswer
    anchor: AnchorAnswer | None
    slices: list[SliceAnswer]
    guarantee: GuaranteeAnswer | None
    denied: int | None
    environment: dict[str, str | None] | None  # null value: unset
    cgroup: str | None
    container: ContainerAnswer | None
    request_id: str | None
    priority: str | None
    queue_priority: str | None
    class_name: str | None
    queue: QueueAnswer | None  # of a queued lease
    idle: IdleAnswer | None
    created_at: str | None
    expires_at: str | None
    ended_at: str | None
    reason: str | None


class GuestAnswer(Answer):
    """A container that was let into a lease; *guarantee* is the container's."""

    lease: int
    id: int
    guarantee: GuaranteeAnswer
    container: ContainerAnswer


class InsideAnswer(Answer):
    """A container in a lease, as the lease's holder sees it later."""

    id: int
    engine: str
    container: str | None  # the engine's id; None: not known yet
    state: str
    reason: str | None  # why it is being ended


class ContainersAnswer(Answer):
    containers: list[InsideAnswer]


class LaunchAnswer(Answer):
    pid: int


class LeasesAnswer(Answer):
    leases: list[LeaseAnswer]
    next: int | None


class LeftObjectAnswer(Answer):
    kind: str
    name: str
    size_bytes: int
    goes: bool
    reason: str
    why: str


class LeftAnswer(Answer):
    lease: int
    ended: bool
    note: str | None
    objects: list[LeftObjectAnswer]


class FreeAnswer(Answer):
    cus: int
    vram_bytes: int
    queue_slots: int
    shares: int | None  # leases that may still join


class PeerAnswer(Answer):
    device: str
    kind: str
    weight: int


class DeviceAnswer(Answer):
    device: str
    epoch: int
    pci: str
    partition: int
    render_node: str | None
    kfd_node: int
    ordinal: int  # ROCr's index
    card: str | None
    gpu_id: int | None
    hip_index: int
    smi_index: int | None
    slurm_index: int | None
    unique_id: str | None  # 0x and 16 digits: JSON readers lose the low bits of a 64-bit number
    uuid: str | None
    product: str
    gfx: str | None
    cus: int
    row: int | None
    xccs: int | None
    shader_engines: int | None  # of one XCC
    shader_arrays: int | None  # of one shader engine
    pool: str
    vram_bytes: int
    grantable_bytes: int
    foreign_bytes: int
    queue_slots: int
    shares: int | None  # leases that may be on it at once
    reserved: list[str] | None  # who alone may lease it, in the site's words
    numa_node: int | None
    hive: str | None  # 0x and 16 digits
    peers: list[PeerAnswer]
    compute_partition: str | None
    memory_partition: str | None
    owner: str  # any, slurm or local: who else asks is refused
    state: str
    reason: str | None
    free: FreeAnswer


class DevicesAnswer(Answer):
    devices: list[DeviceAnswer]
    next: int | None


class CallerAnswer(Answer):
    uid: int | None  # None: by TCP, nobody in particular
    administrator: bool


class CardAnswer(Answer):
    """A physical GPU and how it can be divided."""

    pci: str
    product: str
    gfx: str | None
    compute_partition: str | None
    compute_partitions: list[str]  # that it can take now
    memory_partition: str | None
    memory_partitions: list[str]
    memory_alloc_mode: str | None
    switching: str | None  # the mode that it is being switched to
    devices: list[str]


class CardsAnswer(Answer):
    cards: list[CardAnswer]
    next: int | None


class PoolAnswer(Answer):
    pool: str
    region: str
    vram_bytes: int
    grantable_bytes: int


class SkippedAnswer(Answer):
    kfd_node: int
    reason: str


class TierAnswer(Answer):
    name: str
    present: bool
    why: str


class BypassAnswer(Answer):
    """*seen*: the agent has looked since it began, so nothing that it closes is closed any more."""

    since: str
    until: str
    until_boottime_seconds: int
    uid: int
    reason: str
    seen: bool


class DrainAnswer(Answer):
    """*device* is null for the whole node's."""

    device: str | None
    reason: str | None
    uid: int
    since: str
    until: str | None


class NodeAnswer(Answer):
    name: str
    machine: str
    version: str
    boot_id: str
    generation: int | None
    ready: bool
    reason: str | None
    pools: list[PoolAnswer]
    skipped: list[SkippedAnswer]
    tiers: list[TierAnswer]
    modes: dict[str, str]
    bypass: BypassAnswer | None
    bypass_trouble: str | None
    opened: str | None
    drains: list[DrainAnswer]


class EventAnswer(Answer):
    id: int
    at: str
    kind: str
    uid: int | None
    lease: int | None
    device: str | None
    reason: str | None
    data: dict[str, Any] | None
    count: int
    first_at: str


class EventsAnswer(Answer):
    events: list[EventAnswer]
    next: int | None


class HealthAnswer(Answer):
    status: str
    reason: str | None


class DeviceRefusalAnswer(Answer):
    device: str
    code: str
    why: str
    blockers: list[int]
    earliest_at: str | None


class ProblemAnswer(Answer):
    """An RFC 9457 problem; the fields after ``detail`` are there when they say something."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    field: str | None = None
    lease: int | None = None  # that the caller is in
    blockers: list[int] | None = None
    devices: list[DeviceRefusalAnswer] | None = None
    earliest_at: str | None = None
    next: str | None = None


class EffectAnswer(Answer):
    """One entry of a lease's journal."""

    id: int
    kind: str
    state: str
    arguments: dict[str, Any]
    evidence: dict[str, Any] | None


class JournalAnswer(Answer):
    """A lease's journal, in the order in which it was applied; release goes through it backwards."""

    effects: list[EffectAnswer]
