"""Request bodies. What they check here is what the served OpenAPI document says."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, Strict, StrictBool, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from nodeagent.api.fields import (
    INTEGRAL,
    JOB_PATTERN,
    LARGEST_INTEGER,
    PID_PATTERN,
    Body,
    CgroupPath,
    Count,
    Filters,
    Flag,
    Given,
    Note,
    Percent,
    Text,
    TypeFilters,
    tidy,
)
from nodeagent.domain.classes import CLASS_PATTERN
from nodeagent.domain.container import LIBC_PATTERN

LONGEST_TTL = 86_400  # seconds
MOST_NAMES = 128  # in all filters of a request, for each is held against each device at every try
Ttl = Annotated[int, Field(ge=1, le=LONGEST_TTL), INTEGRAL]
Descriptor = Annotated[int, Field(ge=0, le=1_073_741_823), INTEGRAL]
Pid = Annotated[int, Field(ge=2, le=4_194_304), INTEGRAL]


class SlurmHolder(Body):
    """A Slurm job; only administrators may name one."""

    kind: Literal["slurm"]
    id: Annotated[str, StringConstraints(pattern=JOB_PATTERN, strict=True)]


class DockerHolder(Body):
    """A container; only administrators may name one."""

    kind: Literal["docker"]
    id: Text


class ClientHolder(Body):
    """A name of the caller's own; each uid has its own names."""

    kind: Literal["client"]
    id: Text


class ProcessHolder(Body):
    """The calling process itself; an id, if given, must be its pid."""

    kind: Literal["process"]
    id: Given[Annotated[str, StringConstraints(pattern=PID_PATTERN, strict=True)]] = None


class TtlAnchor(Body):
    """The lease ends unless it is renewed."""

    kind: Literal["ttl"]


class ProcessAnchor(Body):
    """The lease ends with one process: the caller, or the one that is adopted."""

    kind: Literal["process"]
    pid: Given[Pid] = None


class CgroupAnchor(Body):
    """The lease ends when a cgroup is empty: the lease's own, or the one that is adopted."""

    kind: Literal["cgroup"]
    cgroup: Given[CgroupPath] = None


class ExternalAnchor(Body):
    """The lease ends by a call or a reboot; only administrators may ask for it."""

    kind: Literal["external"]


class ContainerAnchor(Body):
    """The lease ends with the container that it is taken for. *start_seconds*: in which that must start."""

    kind: Literal["container"]
    engine: Literal["docker", "podman", "nerdctl"]
    libc: Annotated[str, Strict(), StringConstraints(pattern=LIBC_PATTERN)] = "unknown"
    start_seconds: Given[Ttl] = None
    restarts: Flag = False


Holder = Annotated[SlurmHolder | DockerHolder | ClientHolder | ProcessHolder, Field(discriminator="kind")]
Anchor = Annotated[
    TtlAnchor | ProcessAnchor | CgroupAnchor | ExternalAnchor | ContainerAnchor, Field(discriminator="kind")
]


_PARTS = ("cus", "cu_percent", "vram_bytes", "vram_percent")


def _one_way_each(schema: dict[str, Any]) -> None:
    """The rules of `SliceBody._one_way` in JSON Schema."""
    tidy(schema)
    shared = {"properties": {"cu_shared": {"const": True}}}
    whole = {"partition": {"const": True}}
    schema["allOf"] = [
        {"not": {"required": ["cus", "cu_percent"]}},
        {"not": {"required": ["cus", "cu_shared"], **shared}},
        {"not": {"required": ["cu_percent", "cu_shared"], **shared}},
        {"not": {"required": ["vram_bytes", "vram_percent"]}},
        *({"not": {"required": [part, "partition"], "properties": whole}} for part in _PARTS),
        {"not": {"required": ["cu_shared", "partition"], "properties": {**shared["properties"], **whole}}},
    ]


class SliceBody(Body):
    """One shape of slice, and how many of it, each on a device of its own."""

    model_config = ConfigDict(json_schema_extra=_one_way_each)

    count: Annotated[int, Field(ge=1, le=64), INTEGRAL] = 1
    cus: Given[Count] = None
    cu_percent: Given[Percent] = None
    cu_shared: Flag = False
    vram_bytes: Given[Count] = None
    vram_percent: Given[Percent] = None
    queue_slots: Given[Annotated[int, Field(ge=1, le=4096), INTEGRAL]] = None
    shape: Literal["even", "exact"] = "even"
    device: Filters = ()
    not_device: Filters = ()
    type: TypeFilters = ()
    not_type: TypeFilters = ()
    partition: Flag = False

    @model_validator(mode="after")
    def _one_way(self) -> SliceBody:
        _at_most_one(cus=self.cus, cu_percent=self.cu_percent, cu_shared=self.cu_shared or None)
        _at_most_one(vram_bytes=self.vram_bytes, vram_percent=self.vram_percent)
        if self.partition:
            _at_most_one(partition=True, cu_shared=self.cu_shared or None)
            for part in _PARTS:
                _at_most_one(partition=True, **{part: getattr(self, part)})
        return self


def _at_most_one(**asked: float | None) -> None:
    given = [name for name, value in asked.items() if value is not None]
    if len(given) > 1:
        raise PydanticCustomError(
            "one_way", "{field} and {other} exclude each other", {"field": given[1], "other": given[0]}
        )


class RequireBody(Body):
    """The weakest guarantees that the caller accepts."""

    memory: Given[Literal["kernel", "supervised", "hook", "advisory"]] = None
    compute: Given[Literal["partition", "exclusive", "hook", "mask", "none"]] = None
    visibility: Given[Literal["cgroup", "acl", "environment"]] = None
    ipc: Given[Literal["private", "shared"]] = None


class LeaseOrderBody(Body):
    """``POST /v1/leases``. An empty object asks for one whole device."""

    request_id: Given[Text] = None
    holder: Given[Holder] = None
    anchor: Given[Anchor] = None
    slices: Annotated[tuple[SliceBody, ...], Field(min_length=1, max_length=16)] = (SliceBody(),)
    placement: Literal["binpack", "spread", "topology", "exclusive"] = "binpack"
    numa_bind: Flag = False
    link_bind: Flag = False
    require: RequireBody = RequireBody()
    priority: Literal["high", "normal", "low"] = "normal"
    queue_priority: Literal["high", "normal", "low"] = "normal"
    cdi: Flag = False
    class_name: Given[Annotated[str, StringConstraints(pattern=CLASS_PATTERN, strict=True)]] = None
    ttl_seconds: Given[Ttl] = None
    wait_seconds: Annotated[int, Field(ge=0, le=LONGEST_TTL), INTEGRAL] = 0

    @model_validator(mode="after")
    def _few_names(self) -> LeaseOrderBody:
        filters = [(one.device, one.not_device, one.type, one.not_type) for one in self.slices]
        if sum(len(names) for each in filters for names in each) > MOST_NAMES:
            why = "has more than {most} names in its filters together"
            raise PydanticCustomError("names", why, {"field": "slices", "most": MOST_NAMES})
        return self


class GuestBody(Body):
    """``POST /v1/leases/{id}/containers``: what the caller starts in the lease that it runs in."""

    anchor: ContainerAnchor
    require: RequireBody = RequireBody()
    request_id: Given[Text] = None


class RenewBody(Body):
    """``POST /v1/leases/{id}/renew``; without a field the lease's own ttl starts again."""

    ttl_seconds: Given[Ttl] = None


class ClearBody(Body):
    """``POST /v1/leases/{id}/clear``; *force* frees what cannot be proved clean."""

    force: StrictBool = False


class DescriptorsBody(Body):
    """Numbers of descriptors of the calling process. *command* is a sealed memory file of NUL-ended words."""

    command: Descriptor
    stdin: Descriptor
    stdout: Descriptor
    stderr: Descriptor
    cwd: Descriptor
    report: Descriptor


class LaunchBody(Body):
    """``POST /v1/leases/{id}/launch``."""

    descriptors: DescriptorsBody


class DrainBody(Body):
    """``POST /v1/devices/…/drain``."""

    reason: Given[Note] = None
    until_seconds: Given[Annotated[int, Field(ge=1, le=LARGEST_INTEGER // 10**9), INTEGRAL]] = None


class PartitionBody(Body):
    """``POST /v1/cards/…/partition``."""

    mode: Literal["spx", "dpx", "tpx", "qpx", "cpx"]


class EmptyBody(Body):
    """A call that says everything in its path."""
