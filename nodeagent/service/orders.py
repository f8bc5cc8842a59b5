"""What callers bring to the use cases, and what they get back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nodeagent.domain.container import Container
from nodeagent.domain.cuset import CuSet
from nodeagent.domain.device import Pool, Skipped
from nodeagent.domain.lease import AnchorKind, HolderKind, Lease
from nodeagent.domain.mode import Bypass, Modes
from nodeagent.domain.records import Drain
from nodeagent.domain.request import Request

ANONYMOUS = 2**32 - 1  # the uid that the kernel gives nobody: of callers of the read-only listener


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: the peer of the socket, never what a header says."""

    uid: int
    gid: int
    groups: frozenset[int]
    pid: int
    pidfd: int | None  # open while the request lasts; None where the peer is already gone
    administrator: bool

    @property
    def anonymous(self) -> bool:
        """Whether it is nobody in particular, and sees no more than anybody may."""
        return self.uid == ANONYMOUS


@dataclass(frozen=True, slots=True)
class AnchorOrder:
    """The anchor a caller wants. pid and cgroup are given only to adopt what already runs."""

    kind: AnchorKind
    ttl_seconds: int | None = None
    pid: int | None = None
    cgroup: str | None = None
    container: Container | None = None  # of a container anchor
    max_ttl_seconds: int | None = None  # the most that the request's class allows

    @property
    def adopts(self) -> bool:
        return self.pid is not None or self.cgroup is not None


@dataclass(frozen=True, slots=True)
class NamedCgroup:
    """The cgroup *name* in *parent* that a holder has of its own: its manager's to make and to end, too.

    *also*: what else its manager may turn out to call it.
    """

    parent: str
    name: str
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Behalf:
    """Whose the lease is that an administrator asks for, and where that one runs; None: the agent says."""

    uid: int
    gid: int
    home: NamedCgroup | None = None
    account: str | None = None  # Slurm's, of a job


@dataclass(frozen=True, slots=True)
class Order:
    """One POST /v1/leases, checked field by field; the caller's rights are checked by `grant`."""

    request: Request
    holder_kind: HolderKind
    holder_id: str
    anchor: AnchorOrder
    request_id: str | None
    digest: str  # of the body; the same request id with another digest is KeyReused
    wait_seconds: int = 0
    behalf: Behalf | None = None  # None: the caller asks for itself

    @property
    def contained(self) -> bool:
        """Whether what is to run is in containers, which engines start."""
        return self.anchor.container is not None or self.request.cdi


@dataclass(frozen=True, slots=True)
class Granted:
    """The lease; *fresh* is False when the same request had been granted before."""

    lease: Lease
    fresh: bool


@dataclass(frozen=True, slots=True)
class Queued:
    """The request waits; it is granted, or cancelled at its deadline."""

    lease: Lease
    fresh: bool


@dataclass(frozen=True, slots=True)
class Free:
    """What is left on a device."""

    cus: CuSet
    vram_bytes: int
    queue_slots: int
    shares: int | None = None  # leases that may still join; None: any number


@dataclass(frozen=True, slots=True)
class Tier:
    """One means of enforcement: whether this node has it, and why not."""

    name: str
    present: bool
    why: str


@dataclass(frozen=True, slots=True)
class BypassView:
    """The bypass that is on. *seen*: the agent has looked since it began."""

    bypass: Bypass
    seen: bool


@dataclass(frozen=True, slots=True)
class NodeView:
    """The node as a whole."""

    name: str
    machine: str  # "this node", or which machine file stands in for it
    version: str
    boot_id: str
    generation: int | None
    ready: bool
    reason: str | None
    pools: tuple[Pool, ...]
    skipped: tuple[Skipped, ...]
    tiers: tuple[Tier, ...]
    modes: Modes = Modes()
    bypass: BypassView | None = None
    bypass_trouble: str | None = None  # why what is on record is no bypass
    drains: tuple[Drain, ...] = ()
    observed: Mapping[tuple[str, str], int] = field(default_factory=dict)  # requests: see `Agent.observed`
    opened: str | None = None  # why nothing is closed outside leases, though the site would
