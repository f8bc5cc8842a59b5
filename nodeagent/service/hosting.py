"""Hosting: a container that is started from within a lease is a guest of it, and gets no lease of its own.

It has the lease's GPUs, CUs and limits, counts together with the lease's other programs, and ends with it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from nodeagent.domain.container import Container, Engine, Loading, loading_of
from nodeagent.domain.device import Inventory
from nodeagent.domain.environment import guarantee_of
from nodeagent.domain.errors import NotAllowed, TooMany, UnknownThing
from nodeagent.domain.guarantee import Compute, Guarantee, Hold, Memory, Queues, Requirement
from nodeagent.domain.lease import Anchor, AnchorKind, Lease
from nodeagent.domain.records import EffectRecord, EffectState
from nodeagent.domain.refusals import Code, Refusal
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.anchoring import Anchors
from nodeagent.service.attach import own_active
from nodeagent.service.cgroup_effects import CGROUP, cgroup_in
from nodeagent.service.changes import Changes
from nodeagent.service.charging import queues_held
from nodeagent.service.contained import no_node, render_minors
from nodeagent.service.container_view import ContainerView, ContainerViews
from nodeagent.service.effects import Journal, Planned, record
from nodeagent.service.guest_records import GUEST, Guest, anchored, container_of, guests_in
from nodeagent.service.guests import Guests
from nodeagent.service.hooked import HOOK
from nodeagent.service.job_effects import in_job
from nodeagent.service.locks import LeaseLocks
from nodeagent.service.means import Means
from nodeagent.service.nesting import Nesting
from nodeagent.service.orders import AnchorOrder, Caller
from nodeagent.service.plan import Planner
from nodeagent.service.quotas import Quotas
from nodeagent.service.survey import Survey

MOST = 64  # guests of one lease at a time
_NUMBERS = 10**9


@dataclass(frozen=True, slots=True)
class GuestOrder:
    """One ``POST /v1/leases/{id}/containers``."""

    container: Container
    require: Requirement
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class Hosted:
    """A guest that was let in; *fresh* is False when the same request had it before."""

    lease: int
    number: int
    guarantee: Guarantee
    view: ContainerView
    fresh: bool


class Parents(Protocol):
    """Where the node's engines can put a container: see `engines`."""

    def parent(self, engine: Engine, path: str, *, slices: bool = True) -> str | None: ...


class Hosting:
    """*beside*: means whose files a lease's first guest needs, and that stay for the others."""

    def __init__(
        self,
        ledger: Ledger,
        survey: Survey,
        anchors: Anchors,
        nesting: Nesting,
        planner: Planner,
        quotas: Quotas,
        journal: Journal,
        guests: Guests,
        views: ContainerViews,
        parents: Parents,
        locks: LeaseLocks,
        changes: Changes,
        beside: Sequence[Means] = (),
        keep: Callable[[int], None] = lambda lease: None,
    ) -> None:
        self._ledger = ledger
        self._survey = survey
        self._anchors = anchors
        self._nesting = nesting
        self._planner = planner
        self._quotas = quotas
        self._journal = journal
        self._guests = guests
        self._views = views
        self._parents = parents
        self._locks = locks
        self._changes = changes
        self._beside = tuple(beside)
        self._keep = keep

    def host(self, caller: Caller, lease_id: int, order: GuestOrder) -> Hosted | Refusal:
        """Let a container of the caller's into the lease that the caller runs in.

        Raises:
            NotAllowed: it does not, or the lease is none for guests (why is said).
            InvalidField: no lease is a container's here, or it is given too long to start.
            TooMany: it has very many, or asks too fast.
            OutsideFault: the node says no.
        """
        self._quotas.take_call(caller)  # as an attach: the ranks of a job start theirs at once
        with self._locks.of(lease_id):
            lease = self._entered(caller, lease_id)
            journal = self._ledger.effects(lease_id)
            present, inventory = guests_in(journal), self._survey.inventory()
            known = _known(present, order.request_id)
            if known is not None:
                return self._hosted(lease, known, inventory, fresh=False)
            if len(present) >= MOST:
                raise TooMany(f"lease {lease_id} has {len(present)} containers already", retry_after=5)
            arguments = self._arguments(lease, journal, caller, order, inventory, present)
            guarantee = _guarantee(lease, arguments, inventory)
            refusal = self._refusal(lease, order, guarantee)
            if refusal is not None:
                return refusal
            guest = self._let_in(lease, journal, arguments, inventory, caller.uid)
        self._keep(lease_id)
        self._changes.announce(lease_id)
        return self._hosted(lease, guest, inventory, fresh=True)

    def present(self, lease_id: int) -> list[Guest]:
        """The guests of a lease that lives."""
        return self._guests.of([lease_id])

    def give_back(self, caller: Caller, lease_id: int, number: int) -> None:
        """End a guest of the caller's lease, and its container if there is one; the lease goes on.

        Raises:
            UnknownThing: there is no such guest, or no more.
            NotAllowed, StaleLease: as `Attacher.attach`.
        """
        self._quotas.take_call(caller)
        with self._locks.of(lease_id):
            own_active(self._ledger, caller, lease_id)
            present = guests_in(self._ledger.effects(lease_id))
            guest = next((one for one in present if one.number == number), None)
            if guest is None:
                raise UnknownThing(f"lease {lease_id} has no container {number}")
            self._guests.end(guest, "given back by its holder")
        self._keep(lease_id)
        self._changes.announce(lease_id)

    def _entered(self, caller: Caller, lease_id: int) -> Lease:
        lease, inner = own_active(self._ledger, caller, lease_id), self._nesting.lease_of(caller.pid)
        if inner is None or inner.id != lease_id or lease.holder.uid != caller.uid:
            raise NotAllowed(f"this process does not run in lease {lease_id} of its own")
        if lease.anchor.kind is AnchorKind.CONTAINER or lease.request.cdi:
            raise NotAllowed(f"lease {lease_id} is a container's, and has no others")
        if lease.guarantee.for_one_command:
            raise NotAllowed(
                f"lease {lease_id} is stated memory={lease.guarantee.memory}, ipc={lease.guarantee.ipc}: that"
                " holds what its command starts, and containers are started by their engine. Run the command"
                " without a container, or the container from outside of the lease"
            )
        return lease

    def _arguments(
        self,
        lease: Lease,
        journal: Sequence[EffectRecord],
        caller: Caller,
        order: GuestOrder,
        inventory: Inventory,
        present: Sequence[Guest],
    ) -> dict[str, Any]:
        held, placed = order.container, [one.placed for one in lease.slices]
        anchor: Anchor = self._anchors.open(AnchorOrder(AnchorKind.CONTAINER, container=held), caller)
        if why := no_node(placed, inventory):
            raise NotAllowed(why)
        parent = self._parent(journal, held)
        if parent is None and lease.guarantee.memory is Memory.KERNEL:
            raise NotAllowed(
                f"the kernel holds the memory of lease {lease.id} by a cgroup in which {held.engine} cannot"
                " put containers here: systemd's cgroup driver wants a slice, and version 1 has its own. Have"
                " the engine use the cgroupfs driver (native.cgroupdriver=cgroupfs), run the command without"
                " a container, or the container from outside of the lease"
            )
        return {
            "lease": lease.id,
            "guest": _number({one.number for one in present}),
            "request_id": order.request_id,
            "render_minors": render_minors(placed, inventory),
            "parent": parent,
            "hook": _hook(journal, held),
            **anchored(anchor, held),
        }

    def _parent(self, journal: Sequence[EffectRecord], held: Container) -> str | None:
        """What the engine is told to put it into: below the lease's cgroup, or None where it cannot."""
        home = next((one.arguments for one in journal if one.kind == CGROUP), None)
        ref = cgroup_in(journal)
        if home is None or ref is None:
            raise NotAllowed("the lease has adopted what runs in it, and takes no containers beside")
        slices = home["parent"] is None and not in_job(home)
        return self._parents.parent(held.engine, ref.path, slices=slices)

    def _refusal(self, lease: Lease, order: GuestOrder, guarantee: Guarantee) -> Refusal | None:
        require = order.require.and_floor(lease.request.require)
        short = self._planner.shortfall(replace(lease.request, require=require), guarantee)
        if not short:
            return None
        return Refusal(
            Code.GUARANTEE_NOT_MET,
            f"lease {lease.id} cannot hold such a container as demanded: {'; '.join(short)}",
            "ask for less with --require, down to the lease's own, or use an image that loads the hook",
        )

    def _let_in(
        self,
        lease: Lease,
        journal: Sequence[EffectRecord],
        arguments: Mapping[str, Any],
        inventory: Inventory,
        uid: int,
    ) -> Guest:
        """Journal it, and do it; what fails is taken back before that is raised."""
        with self._ledger.write() as tx:
            planned = [
                *self._missing(lease, journal, container_of(arguments, {}), inventory),
                Planned(GUEST, arguments),
            ]
            entries = [tx.plan_effect(lease.id, one.kind, one.arguments) for one in planned]
            data = {"guest": arguments["guest"], "engine": arguments["engine"]}
            tx.event("guest", uid=uid, lease=lease.id, data=data)
        try:
            done = self._journal.apply_more(lease.id, {one.id for one in entries})
        except Exception:
            (guest,) = guests_in(entries)
            self._guests.end(guest, "it could not be let in")
            raise
        with self._ledger.write() as tx:
            record(tx, done)
        told = self._ledger.effects(lease.id)
        return next(one for one in guests_in(told) if one.number == arguments["guest"])

    def _missing(
        self, lease: Lease, journal: Sequence[EffectRecord], held: Container, inventory: Inventory
    ) -> list[Planned]:
        """What guests need beside, and no earlier one had made."""
        there = {one.kind for one in journal if one.state is EffectState.VERIFIED}
        setting = self._planner.guest(lease, held, inventory)
        planned = [effect for means in self._beside for effect in means.plan(lease.id, setting)]
        return [effect for effect in planned if effect.kind not in there]

    def _hosted(self, lease: Lease, guest: Guest, inventory: Inventory, *, fresh: bool) -> Hosted:
        guarantee = _guarantee(lease, guest.entry.arguments, inventory)
        return Hosted(lease.id, guest.number, guarantee, self._views.of_guest(lease, guest), fresh)


def _known(present: Sequence[Guest], request_id: str | None) -> Guest | None:
    """The one that the same request got before."""
    asked = [one for one in present if request_id is not None and one.request_id == request_id]
    there = (one for one in asked if one.ending is None and one.entry.state is EffectState.VERIFIED)
    return next(there, None)


def _number(taken: Collection[int]) -> int:
    """One that none of the lease's ever had, or will: of it the ticket is made."""
    while (number := 1 + secrets.randbelow(_NUMBERS)) in taken:
        continue
    return number


def _hook(journal: Sequence[EffectRecord], held: Container) -> dict[str, Any] | None:
    """How its programs load the hook, and what that charges; None where it cannot, or the lease has none."""
    found = next((one for one in journal if one.kind == HOOK and one.state is EffectState.VERIFIED), None)
    loading = loading_of(held.libc)
    if found is None or not loading.possible:
        return None
    charged = {name: found.arguments.get(name) for name in ("devices", "queue_levels")}
    return {**charged, "loading": asdict(loading)}


def _guarantee(lease: Lease, arguments: Mapping[str, Any], inventory: Inventory) -> Guarantee:
    """What holds it: of what holds the lease, that which reaches into the container."""
    hook = arguments["hook"]
    holds = [Hold(visibility=lease.guarantee.visibility)]
    if hook is not None and Loading(**hook["loading"]).certain:
        held = queues_held(hook, Queues.HOOK)
        holds.append(Hold(memory=Memory.HOOK, compute=Compute.HOOK, queues=held.get("queues")))
    if arguments["parent"] is not None and lease.guarantee.memory is Memory.KERNEL:
        holds.append(Hold(memory=Memory.KERNEL))
    return guarantee_of([one.placed for one in lease.slices], inventory).with_holds(holds)
