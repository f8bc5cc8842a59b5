"""The agent's use cases behind one door: what the API and the command line call, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace

from nodeagent.domain.classes import Class
from nodeagent.domain.clock import Clock
from nodeagent.domain.device import Device, Inventory
from nodeagent.domain.drains import NODE
from nodeagent.domain.errors import LedgerUnavailable, NotAllowed, UnknownThing
from nodeagent.domain.idle import Idle
from nodeagent.domain.lease import ENDED, HeldSlice, HolderKind, Lease, LeaseState
from nodeagent.domain.measures import Measures
from nodeagent.domain.records import Drain, EffectRecord, Event
from nodeagent.domain.refusals import Refusal
from nodeagent.domain.request import Priority
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.attach import Attacher
from nodeagent.service.changes import Changes
from nodeagent.service.classes import Classes
from nodeagent.service.container_view import ContainerView, ContainerViews
from nodeagent.service.drains import Drains
from nodeagent.service.effects import Told
from nodeagent.service.enforcement import Enforcement
from nodeagent.service.grant import Granter, Outcome
from nodeagent.service.guest_records import Guest
from nodeagent.service.hosting import GuestOrder, Hosted, Hosting
from nodeagent.service.launch import Launcher, LaunchOrder
from nodeagent.service.measuring import Measuring
from nodeagent.service.naming import Names
from nodeagent.service.orders import Caller, Free, NodeView, Order, Queued, Tier
from nodeagent.service.partitioning import Partitioning
from nodeagent.service.queue import Queue, Standing
from nodeagent.service.quota_rules import Allotment, QuotaRules
from nodeagent.service.release import Releaser, quarantined
from nodeagent.service.rights import must_administer, must_be_allowed, must_own, owns, owns_nothing
from nodeagent.service.shared_memory import Left
from nodeagent.service.slurm import Slurm
from nodeagent.service.survey import Survey, free_of

TRANSIENT = frozenset({LeaseState.QUEUED, LeaseState.PREPARING, LeaseState.RELEASING})


@dataclass(frozen=True, slots=True)
class Identity:
    """What the node document says of the node itself."""

    name: str
    machine: str
    version: str


@dataclass(frozen=True, slots=True)
class AgentParts:
    """What the façade needs; wiring fills it."""

    ledger: Ledger
    clock: Clock
    survey: Survey
    drains: Drains
    enforcement: Enforcement
    granter: Granter
    queue: Queue
    attacher: Attacher
    launcher: Launcher
    releaser: Releaser
    measuring: Measuring
    changes: Changes
    identity: Identity
    told: Callable[[int], Told | None]
    left: Callable[[Lease], Left] | None
    views: ContainerViews
    container_leases: Callable[[str], Collection[int]]
    hosting: Hosting
    queue_priority: Priority  # the most that others than administrators may ask for hardware queues
    tiers: Callable[[], tuple[Tier, ...]]
    unready: Callable[[], str | None]
    observed: Callable[[], Mapping[tuple[str, str], int]]
    slurm: Slurm
    partitioning: Partitioning
    rules: QuotaRules
    classes: Classes


class Agent:
    """Every verb of the product. Callers are already identified; their rights are checked here."""

    def __init__(self, parts: AgentParts) -> None:
        self._parts = parts
        self.clock = parts.clock
        self.slurm = parts.slurm
        self.partitions = parts.partitioning
        self._names = Names(parts.ledger)

    # -- what there is ------------------------------------------------------------------------------

    def unready(self) -> str | None:
        """Why no new lease is granted, or None."""
        return self._parts.unready()

    def node(self) -> NodeView:
        """The node document; it answers, and says what is wrong, also when the ledger cannot be read."""
        found, identity = self._parts.survey.shown(), self._parts.identity
        reason, enforcement = self.unready(), self._parts.enforcement
        return NodeView(
            name=identity.name,
            machine=identity.machine,
            version=identity.version,
            boot_id=self.clock.boot_id,
            generation=found.generation,
            ready=reason is None,
            reason=reason,
            pools=found.pools,
            skipped=found.skipped,
            tiers=self._parts.tiers(),
            modes=enforcement.modes,
            bypass=enforcement.view(),
            bypass_trouble=enforcement.trouble,
            drains=self._drains(),
            observed=self.observed(),
            opened=enforcement.opened(),
        )

    def inventory(self) -> Inventory:
        return self._parts.survey.inventory()

    def free(self, device_key: str) -> Free:
        """What is left on a device."""
        inventory, held = self.inventory(), self._parts.ledger.held()
        device = inventory.device(device_key)
        if device is None:
            raise UnknownThing(f"there is no device {device_key}")
        return free_of(device, inventory, held)

    # -- leases -------------------------------------------------------------------------------------

    def grant(self, caller: Caller, order: Order) -> Outcome:
        """Grant, queue or refuse. Raises LedgerUnavailable while the agent takes no new leases."""
        line = self._parts.classes.most_priority(order.request)
        must_be_allowed(caller, order, self._parts.queue_priority, line)
        reason = self.unready()
        if reason is not None:
            raise LedgerUnavailable(reason)
        if any(asked.device or asked.not_device for asked in order.request.slices):
            order = replace(order, request=self._names.pinned(order.request, self.inventory()))
        outcome = self._parts.granter.grant(caller, order)
        if isinstance(outcome, Queued):
            self._parts.queue.place(outcome.lease)
        return outcome

    def held(self) -> tuple[HeldSlice, ...]:
        """Every slice that is not free."""
        return self._parts.ledger.held()

    def measures(self) -> Measures:
        """What is measured beside what is booked, for metrics."""
        return self._parts.measuring.measures()

    def lease(self, caller: Caller, lease_id: int) -> Lease:
        """Anyone may read a lease; what they see of another's is the API's to mask."""
        return self._read(lease_id)

    def standing(self, lease: Lease) -> Standing | None:
        """What a queued lease can expect; None for others, and before the queue was looked at with it."""
        return self._parts.queue.standing(lease.id) if lease.state is LeaseState.QUEUED else None

    def idle(self, lease: Lease) -> Idle | None:
        """Since when an active lease is idle; None where it works, or that is not measured or asked for."""
        return self._parts.measuring.idle(lease.id) if lease.state is LeaseState.ACTIVE else None

    def told(self, lease: Lease) -> Told | None:
        """What the programs of an active lease say that they use; None where nothing hears them."""
        return self._parts.told(lease.id) if lease.state is LeaseState.ACTIVE else None

    def container(self, caller: Caller, lease: Lease, *, ticket: bool = False) -> ContainerView | None:
        """What the lease's container is to be started with; None where it is no container's.

        *ticket*: with that, which is for the request alone that the lease was taken by. The name of its CDI
        device is for whoever may use the lease.
        """
        return self._parts.views.of(lease, ticket=ticket, cdi=owns(caller, lease))

    def wait_lease(self, caller: Caller, lease_id: int, seconds: float) -> Lease:
        """The lease once it has left a passing state, or as it is after *seconds*."""

        def settled() -> Lease | None:
            lease = self._read(lease_id)
            return None if lease.state in TRANSIENT else lease

        return self._parts.changes.wait_for(settled, seconds, lease_id=lease_id) or self._read(lease_id)

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
        """Leases by id, ascending; the last id is the cursor for *after*. *device*: in any spelling.

        Those of ``docker:NAME`` are also those that are bound to the container of that name, or id.
        """
        docker = holder is not None and holder[0] is HolderKind.DOCKER
        also = self._parts.container_leases(holder[1]) if docker and holder else ()
        return self._parts.ledger.leases(
            state=state,
            uid=uid,
            devices=None if device is None else self._names.keys(device, self.inventory()),
            holder=holder,
            also=also,
            since=since,
            ended_since=ended_since,
            after=after,
            limit=limit,
        )

    def observed(self) -> Mapping[tuple[str, str], int]:
        """Observed requests since the start, by holder kind, and ``granted`` or why not."""
        return self._parts.observed()

    def attach(self, caller: Caller, lease_id: int) -> Lease:
        return self._parts.attacher.attach(caller, lease_id)

    def launch(self, caller: Caller, lease_id: int, order: LaunchOrder) -> int:
        """Start the one command of a lease that takes no other; its pid."""
        return self._parts.launcher.launch(caller, lease_id, order)

    def host(self, caller: Caller, lease_id: int, order: GuestOrder) -> Hosted | Refusal:
        """Let a container into the lease that the caller runs in."""
        return self._parts.hosting.host(caller, lease_id, order)

    def guests(self, caller: Caller, lease_id: int) -> list[Guest]:
        """The containers in a lease that was not taken for them: for its holder, and administrators."""
        must_own(caller, self._read(lease_id))
        return self._parts.hosting.present(lease_id)

    def give_back_guest(self, caller: Caller, lease_id: int, number: int) -> None:
        """End what `host` let in, and no more than that."""
        self._parts.hosting.give_back(caller, lease_id, number)

    def renew(self, caller: Caller, lease_id: int, ttl_seconds: int | None = None) -> Lease:
        return self._parts.attacher.renew(caller, lease_id, ttl_seconds)

    def release(self, caller: Caller, lease_id: int, wait_seconds: float = 0) -> Lease:
        """Release; releasing an ended lease is success, one that never was is UnknownThing.

        The lease comes back RELEASING when its proof takes longer than *wait_seconds*.
        """
        lease = self._read(lease_id)
        must_own(caller, lease)
        if lease.state not in ENDED:
            self._parts.releaser.end(lease_id, uid=caller.uid, reason="released by its holder")
        return self.wait_lease(caller, lease_id, wait_seconds)

    def left(self, caller: Caller, lease_id: int) -> Left:
        """What of a lease's shared memory would go with it now, or has gone, and why the rest stays."""
        must_administer(caller)
        lease = self._read(lease_id)
        if self._parts.left is None:
            raise NotAllowed("this agent has no cgroup2 mount: it cannot tell what a lease's processes left")
        return self._parts.left(lease)

    def clear_lease(self, caller: Caller, lease_id: int, *, force: bool = False) -> Lease:
        """Try the proof of a quarantined lease again, now. *force* frees its slices without one.

        Raises:
            NotAllowed: forced, and a process of the lease still lives.
        """
        must_administer(caller)
        if quarantined(self._read(lease_id)):
            self._await([self._parts.releaser.retry(lease_id)])
        if force and quarantined(self._read(lease_id)):
            self._parts.releaser.force(lease_id, uid=caller.uid)
        return self._read(lease_id)

    def journal(self, caller: Caller, lease_id: int) -> tuple[EffectRecord, ...]:
        """What was done for the lease outside the ledger, in that order, with the evidence."""
        must_administer(caller)
        self._read(lease_id)
        return self._parts.ledger.effects(lease_id)

    def class_of(self, caller: Caller, name: str | None, kind: HolderKind) -> Class:
        """The class of a request that names *name*. Raises InvalidField."""
        return self._parts.classes.named(caller, name, kind)

    def classes(self, caller: Caller) -> tuple[Class, ...]:
        """The classes that *caller* may name."""
        return () if owns_nothing(caller) else self._parts.classes.usable(caller)

    def quotas(self, caller: Caller) -> tuple[Allotment, ...]:
        """The quotas that hold for *caller*, and what counts towards them: nothing for others than itself."""
        if owns_nothing(caller):
            return ()
        return self._parts.rules.allotments(self._parts.ledger, caller)

    # -- devices ------------------------------------------------------------------------------------

    def device(self, key: str) -> Device:
        device = self.inventory().device(key)
        if device is None:
            raise UnknownThing(f"there is no device {key}")
        return device

    def named(self, name: str) -> tuple[Device, ...]:
        """The devices that *name* means, in any spelling. Raises UnknownThing."""
        return self._names.devices(name, self.inventory())

    def drain(
        self, caller: Caller, device: str, *, reason: str | None = None, until_seconds: int | None = None
    ) -> Device:
        """Grant nothing new on the device; live leases go on and may renew."""
        must_administer(caller)
        self.device(device)
        self._parts.drains.begin(device, uid=caller.uid, reason=reason, until_seconds=until_seconds)
        return self.device(device)

    def undrain(self, caller: Caller, device: str) -> Device:
        must_administer(caller)
        self.device(device)
        self._parts.drains.end(device, uid=caller.uid)
        return self.device(device)

    def drain_node(
        self, caller: Caller, *, reason: str | None = None, until_seconds: int | None = None
    ) -> NodeView:
        """Grant nothing new on any device, also one that is yet to come; live leases go on."""
        must_administer(caller)
        self._parts.drains.begin(NODE, uid=caller.uid, reason=reason, until_seconds=until_seconds)
        return self.node()

    def undrain_node(self, caller: Caller) -> NodeView:
        """End every drain: the node's, and that of each device."""
        must_administer(caller)
        self._parts.drains.end_all(uid=caller.uid)
        return self.node()

    def clear(self, caller: Caller, device: str) -> Device:
        """Take its card's uncorrectable errors as known, and try the proof of its quarantined slices again.

        Raises OutsideFault where the first cannot be kept.
        """
        must_administer(caller)
        self._acknowledge(caller, self.device(device).pci)
        unclean = {held.lease for held in self._parts.ledger.quarantined() if held.placed.device == device}
        self._await([self._parts.releaser.retry(lease_id) for lease_id in sorted(unclean)])
        return self.device(device)

    def _acknowledge(self, caller: Caller, pci: str) -> None:
        health = self._parts.survey.health
        if health is not None and health.acknowledge(pci, caller.uid):
            self._parts.changes.announce()

    # -- events -------------------------------------------------------------------------------------

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
        """Events after the one numbered *after*: all of them for administrators, their own for others."""
        if owns_nothing(caller):
            return ()
        own = None if caller.administrator else caller.uid

        def look() -> tuple[Event, ...] | None:
            found = self._parts.ledger.events(after, limit, lease, own, newest=newest)
            return found or None

        return self._parts.changes.wait_for(look, wait) or ()

    def _drains(self) -> tuple[Drain, ...]:
        """None where the ledger cannot be read: the reason stands beside them then."""
        try:
            return self._parts.ledger.drains()
        except LedgerUnavailable:
            return ()

    def _read(self, lease_id: int) -> Lease:
        lease = self._parts.ledger.lease(lease_id)
        if lease is None:
            raise UnknownThing(f"there is no lease {lease_id}")
        return lease

    @staticmethod
    def _await(work: Sequence[Future[None]]) -> None:
        wait(work, 4.0)  # no request holds its thread over five seconds; the rest goes on by itself
