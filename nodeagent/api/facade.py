"""What the API needs of the service layer, so that both can be tested apart."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from nodeagent.domain.classes import Class
from nodeagent.domain.device import Device, Inventory
from nodeagent.domain.idle import Idle
from nodeagent.domain.lease import HeldSlice, HolderKind, Lease, LeaseState
from nodeagent.domain.measures import Measures
from nodeagent.domain.partition import Card
from nodeagent.domain.records import EffectRecord, Event
from nodeagent.domain.refusals import Refusal
from nodeagent.domain.slurm import Verdict
from nodeagent.service.container_view import ContainerView
from nodeagent.service.effects import Told
from nodeagent.service.guest_records import Guest
from nodeagent.service.hosting import GuestOrder, Hosted
from nodeagent.service.launch import LaunchOrder
from nodeagent.service.orders import Caller, Granted, NodeView, Order, Queued
from nodeagent.service.queue import Standing
from nodeagent.service.quota_rules import Allotment
from nodeagent.service.shared_memory import Left


class Slurm(Protocol):
    """What Slurm's scripts ask for; a body is an environment as the kernel has it."""

    def prolog(self, caller: Caller, body: bytes, wait_seconds: float = 0) -> Verdict: ...

    def epilog(self, caller: Caller, body: bytes, wait_seconds: float = 0) -> Verdict: ...

    def task(self, caller: Caller, body: bytes) -> tuple[str, ...]:
        """The lines that Slurm's TaskProlog understands."""


class Partitions(Protocol):
    """The partition modes of cards; for administrators."""

    def cards(self, caller: Caller) -> tuple[Card, ...]: ...

    def switch(self, caller: Caller, pci: str, text: str, wait_seconds: float = 0) -> Card | Refusal:
        """The card, `switching` where the kernel has not shown all of it after *wait_seconds*."""


class Agent(Protocol):
    """The use cases. Faults are the exceptions of `nodeagent.domain.errors`."""

    @property
    def slurm(self) -> Slurm: ...

    @property
    def partitions(self) -> Partitions: ...

    def node(self) -> NodeView: ...

    def inventory(self) -> Inventory: ...

    def named(self, name: str) -> tuple[Device, ...]:
        """The devices that *name* means, in any spelling."""

    def class_of(self, caller: Caller, name: str | None, kind: HolderKind) -> Class:
        """The class of a request that names *name*. Raises InvalidField."""

    def classes(self, caller: Caller) -> tuple[Class, ...]:
        """The classes that *caller* may name."""

    def quotas(self, caller: Caller) -> tuple[Allotment, ...]:
        """The quotas that hold for *caller*, and what counts towards them."""

    def held(self) -> tuple[HeldSlice, ...]:
        """Every slice that is not free."""

    def measures(self) -> Measures:
        """What is measured beside that, for metrics."""

    def grant(self, caller: Caller, order: Order) -> Granted | Queued | Refusal: ...

    def lease(self, caller: Caller, lease_id: int) -> Lease: ...

    def leases(
        self,
        caller: Caller,
        *,
        state: Collection[LeaseState] | None = None,
        uid: int | None = None,
        device: str | None = None,
        holder: tuple[HolderKind, str] | None = None,
        since: float | None = None,
        ended_since: float | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> tuple[Lease, ...]:
        """Leases by ascending id, from above *after*; *since* and *ended_since* are wall-clock seconds."""

    def wait_lease(self, caller: Caller, lease_id: int, seconds: float) -> Lease:
        """The lease, once it is neither queued nor preparing nor releasing, or after *seconds*."""

    def standing(self, lease: Lease) -> Standing | None:
        """What a queued lease can expect, once that is known."""

    def idle(self, lease: Lease) -> Idle | None:
        """Since when the lease is idle; None where it works, or that is not known."""

    def told(self, lease: Lease) -> Told | None:
        """What the lease's programs say that they use; None where nothing hears them."""

    def container(self, caller: Caller, lease: Lease, *, ticket: bool = False) -> ContainerView | None:
        """What the lease's container is to be started with; None where it is no container's."""

    def attach(self, caller: Caller, lease_id: int) -> Lease: ...

    def launch(self, caller: Caller, lease_id: int, order: LaunchOrder) -> int:
        """The pid of the command that was started in a lease that takes no other."""

    def host(self, caller: Caller, lease_id: int, order: GuestOrder) -> Hosted | Refusal:
        """A container that is let into the lease that the caller runs in."""

    def guests(self, caller: Caller, lease_id: int) -> list[Guest]:
        """The containers that `host` let in, and that are there."""

    def give_back_guest(self, caller: Caller, lease_id: int, number: int) -> None:
        """End what `host` let in, and no more than that."""

    def renew(self, caller: Caller, lease_id: int, ttl_seconds: int | None = None) -> Lease: ...

    def release(self, caller: Caller, lease_id: int, wait_seconds: float = 0) -> Lease: ...

    def clear_lease(self, caller: Caller, lease_id: int, *, force: bool = False) -> Lease: ...

    def journal(self, caller: Caller, lease_id: int) -> tuple[EffectRecord, ...]:
        """The lease's effects with their evidence; for administrators."""

    def left(self, caller: Caller, lease_id: int) -> Left:
        """What becomes of the lease's shared memory; for administrators."""

    def drain(
        self, caller: Caller, device: str, *, reason: str | None = None, until_seconds: int | None = None
    ) -> Device: ...

    def undrain(self, caller: Caller, device: str) -> Device: ...

    def clear(self, caller: Caller, device: str) -> Device: ...

    def drain_node(
        self, caller: Caller, *, reason: str | None = None, until_seconds: int | None = None
    ) -> NodeView: ...

    def undrain_node(self, caller: Caller) -> NodeView: ...

    def events(
        self,
        caller: Caller,
        after: int = 0,
        wait: float = 0,
        limit: int = 100,
        *,
        newest: bool = False,
        lease: int | None = None,
    ) -> tuple[Event, ...]:
        """Events of ids above *after*, oldest first; with *newest* the last *limit* of them, at once."""
