"""A small agent that lives in memory, the application over it, and callers to be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from nodeagent.api.app import ApiSettings, create_app
from nodeagent.api.waits import WaitingRoom
from nodeagent.domain.cuset import CuSet
from nodeagent.domain.device import Device, Inventory
from nodeagent.domain.errors import NotAllowed, UnknownThing
from nodeagent.domain.guarantee import Compute, Guarantee
from nodeagent.domain.idle import Idle
from nodeagent.domain.lease import (
    Anchor,
    AnchorKind,
    HeldSlice,
    Holder,
    HolderKind,
    Lease,
    LeaseState,
    PlacedSlice,
    SliceState,
)
from nodeagent.domain.measures import Measures
from nodeagent.domain.records import EffectRecord, EffectState, Event
from nodeagent.domain.refusals import Code, DeviceRefusal, Refusal
from nodeagent.domain.request import Request, Shape
from nodeagent.service.container_view import ContainerView
from nodeagent.service.effects import Told
from nodeagent.service.launch import LaunchOrder
from nodeagent.service.orders import Caller, Granted, NodeView, Order, Queued, Tier
from nodeagent.service.queue import Standing
from nodeagent.service.rights import must_administer, must_be_allowed
from nodeagent.service.shared_memory import Left

from .api_inventory import known, make_inventory
from .fake_guests import FakeGuests
from .fake_partitions import FakePartitions
from .fake_policy import GIB, FakePolicy
from .fake_slurm import FakeSlurm
from .fake_views import FakeViews

SECOND_NS = 1_000_000_000


@dataclass
class FrozenClock:
    """A clock that only a test moves."""

    boot: int = 1_000 * SECOND_NS
    now: float = 1_800_000_000.0
    boot_id: str = "00000000-0000-0000-0000-000000000001"

    def boot_ns(self) -> int:
        return self.boot

    def wall(self) -> float:
        return self.now


@dataclass
class FakeAgent(FakeGuests, FakePolicy, FakeViews):
    """Grants everything that the caller may ask for, or gives *outcome*; raises *fault* if one is set."""

    clock: FrozenClock
    found: Inventory = field(default_factory=make_inventory)
    known: dict[int, Lease] = field(default_factory=dict)
    records: list[Event] = field(default_factory=list)
    orders: list[tuple[Caller, Order]] = field(default_factory=list)
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    outcome: Refusal | None = None
    queues: bool = False
    fault: Exception | None = None
    measured: Measures = Measures()
    ready: bool = True
    says: Told | None = None
    standings: dict[int, Standing] = field(default_factory=dict)
    resting: dict[int, Idle] = field(default_factory=dict)
    view: ContainerView | None = None
    on_wait: Callable[[float], None] = lambda seconds: None
    slurm: FakeSlurm = field(default_factory=FakeSlurm)
    partitions: FakePartitions = field(default_factory=FakePartitions)

    def node(self) -> NodeView:
        self._fail()
        return NodeView(
            name="gpu01",
            machine="this node",
            version="0.1.0",
            boot_id=self.clock.boot_id,
            generation=2,
            ready=self.ready,
            reason=None if self.ready else "the ledger is full",
            pools=self.found.pools,
            skipped=self.found.skipped,
            tiers=(Tier("kernel", False, "no dmem controller"),),
        )

    def inventory(self) -> Inventory:
        self._fail()
        return self.found

    def named(self, name: str) -> tuple[Device, ...]:
        return known(self.found, name)

    def held(self) -> tuple[HeldSlice, ...]:
        return tuple(held for lease in self.known.values() for held in lease.slices)

    def measures(self) -> Measures:
        self._fail()
        states = Counter(lease.state for lease in self.known.values())
        return replace(self.measured, states=states)

    def grant(self, caller: Caller, order: Order) -> Granted | Queued | Refusal:
        must_be_allowed(caller, order)
        self._fail()
        self.orders.append((caller, order))
        if self.outcome is not None:
            return self.outcome
        for lease in self.known.values():
            if order.request_id is not None and lease.request_id == order.request_id:
                return Granted(lease, fresh=False)
        lease = self.add(
            caller.uid,
            holder=Holder(order.holder_kind, order.holder_id, caller.uid),
            request=order.request,
            request_id=order.request_id,
            state=LeaseState.QUEUED if self.queues else LeaseState.ACTIVE,
        )
        return (Queued if self.queues else Granted)(lease, fresh=True)

    def add(self, uid: int, **changes: Any) -> Lease:
        """Put a lease of *uid* into the ledger that there is not."""
        number = 1001 + len(self.known)
        placed = PlacedSlice(
            device=self.found.devices[0].key,
            epoch=1,
            pool=self.found.pools[0].key,
            cus=CuSet.span(0, 64),
            shared=False,
            exclusive=False,
            whole=False,
            cu_requested=64,
            effective_cus=64,
            vram_bytes=4 * GIB,
            queue_slots=2,
            shape=Shape.EVEN,
        )
        lease = Lease(
            id=number,
            state=LeaseState.ACTIVE,
            holder=Holder(HolderKind.CLIENT, "trainer", uid),
            anchor=Anchor(
                AnchorKind.TTL, armed=True, deadline_ns=self.clock.boot + 900 * SECOND_NS, ttl_seconds=900
            ),
            request=Request(),
            request_id="job-17",
            boot_id=self.clock.boot_id,
            created_ns=self.clock.boot,
            created_at=self.clock.now,
            slices=(HeldSlice(number, number, uid, placed, SliceState.HELD),),
            guarantee=Guarantee(compute=Compute.MASK),
            environment={
                "ROCR_VISIBLE_DEVICES": "0",
                "GPULEASE_ID": str(number),
                "HIP_VISIBLE_DEVICES": None,
            },
            cgroup=f"/sys/fs/cgroup/gpulease.slice/{number}",
            reason="for the test",
        )
        self.known[number] = replace(lease, **changes)
        return self.known[number]

    def container(self, caller: Caller, lease: Lease, *, ticket: bool = False) -> ContainerView | None:
        if self.view is None or not (lease.anchor.container or lease.request.cdi):
            return None
        labels = {"gpulease.lease": str(lease.id)} | ({"gpulease.ticket": "f" * 32} if ticket else {})
        return replace(self.view, labels=labels)

    def lease(self, caller: Caller, lease_id: int) -> Lease:
        self._fail()
        if lease_id not in self.known:
            raise UnknownThing(f"there is no lease {lease_id}")
        return self.known[lease_id]

    def leases(
        self,
        caller: Caller,
        *,
        state: Collection[LeaseState] | None = None,
        uid: int | None = None,
        after: int = 0,
        limit: int = 100,
        **more: Any,
    ) -> tuple[Lease, ...]:
        self._fail()
        self.calls.append(("leases", {"state": state, "uid": uid, "after": after, "limit": limit, **more}))
        return tuple(
            lease
            for lease in self.known.values()
            if lease.id > after
            and (uid is None or lease.holder.uid == uid)
            and (state is None or lease.state in state)
        )[:limit]

    def wait_lease(self, caller: Caller, lease_id: int, seconds: float) -> Lease:
        self.calls.append(("wait", seconds))
        self.on_wait(seconds)
        return self.lease(caller, lease_id)

    def attach(self, caller: Caller, lease_id: int) -> Lease:
        return self._own(caller, lease_id)

    def launch(self, caller: Caller, lease_id: int, order: LaunchOrder) -> int:
        self.calls.append(("launch", order))
        self._own(caller, lease_id)
        return 4242

    def renew(self, caller: Caller, lease_id: int, ttl_seconds: int | None = None) -> Lease:
        self.calls.append(("renew", ttl_seconds))
        return self._own(caller, lease_id)

    def release(self, caller: Caller, lease_id: int, wait_seconds: float = 0) -> Lease:
        self.calls.append(("release", wait_seconds))
        lease = self._own(caller, lease_id)
        state = LeaseState.RELEASED if wait_seconds else LeaseState.RELEASING
        self.known[lease_id] = replace(lease, state=state)
        return self.known[lease_id]

    def left(self, caller: Caller, lease_id: int) -> Left:
        must_administer(caller)
        self.lease(caller, lease_id)
        what = {"kind": "posix-shm", "name": "x", "size_bytes": 4096}
        return Left(lease_id, False, ({**what, "goes": True, "reason": "proved", "why": "made within it"},))

    def clear_lease(self, caller: Caller, lease_id: int, *, force: bool = False) -> Lease:
        return self._own(caller, lease_id)

    def journal(self, caller: Caller, lease_id: int) -> tuple[EffectRecord, ...]:
        self._own(caller, lease_id)
        return (EffectRecord(1, lease_id, "cgroup", {"parent": None}, EffectState.VERIFIED, None, 0),)

    def drain(
        self, caller: Caller, key: str, *, reason: str | None = None, until_seconds: int | None = None
    ) -> Device:
        self.calls.append(("drain", key, reason, until_seconds))
        return self._device(key)

    def undrain(self, caller: Caller, key: str) -> Device:
        return self._device(key)

    def clear(self, caller: Caller, key: str) -> Device:
        return self._device(key)

    def drain_node(self, caller: Caller, **wanted: Any) -> NodeView:
        return self.node()

    undrain_node = drain_node

    def events(
        self, caller: Caller, after: int = 0, wait: float = 0, limit: int = 100, **more: Any
    ) -> tuple[Event, ...]:
        self._fail()
        found = [event for event in self.records if event.id > after]
        found = [event for event in found if more.get("lease") in (None, event.lease)]
        found = found[-limit:] if more.get("newest") else found[:limit]
        if wait and not found:
            self.calls.append(("wait", wait))
            self.on_wait(wait)
        return tuple(found)

    def _device(self, key: str) -> Device:
        device = self.found.device(key)
        if device is None:
            raise UnknownThing(f"there is no device {key}")
        return device

    def _own(self, caller: Caller, lease_id: int) -> Lease:
        lease = self.lease(caller, lease_id)
        if lease.holder.uid != caller.uid and not caller.administrator:
            raise NotAllowed(f"lease {lease_id} is not yours")
        return lease

    def _fail(self) -> None:
        if self.fault is not None:
            raise self.fault


class ActingClient(FlaskClient):
    """A test client whose requests come from *caller*."""

    caller: Caller

    def open(self, *args: Any, **kwargs: Any) -> Any:
        kwargs.setdefault("environ_overrides", {})["test.caller"] = self.caller
        return super().open(*args, **kwargs)


def identify(environ: Mapping[str, Any]) -> Caller:
    return environ["test.caller"]


def make_caller(uid: int, *, administrator: bool | None = None, pid: int = 4242) -> Caller:
    return Caller(
        uid=uid,
        gid=uid,
        groups=frozenset({uid}),
        pid=pid,
        pidfd=None,
        administrator=uid == 0 if administrator is None else administrator,
    )


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture
def agent(clock: FrozenClock) -> FakeAgent:
    return FakeAgent(clock)


@pytest.fixture
def waiting() -> WaitingRoom:
    return WaitingRoom()


@pytest.fixture
def app(agent: FakeAgent, clock: FrozenClock, waiting: WaitingRoom) -> Flask:
    return create_app(agent, identify, ApiSettings(clock=clock, version="0.1.0", waiting=waiting))


@pytest.fixture
def open_app(agent: FakeAgent, clock: FrozenClock) -> Flask:
    """The application where [privacy] leases is "open"."""
    return create_app(agent, identify, ApiSettings(clock=clock, version="0.1.0", leases_open=True))


@pytest.fixture
def caller_of() -> Callable[..., Caller]:
    return make_caller


@pytest.fixture
def client_of(app: Flask) -> Callable[..., ActingClient]:
    """A client that calls as a uid: ``client_of(1000)``; uid 0 is an administrator."""

    def make(uid: int, *, application: Flask | None = None, **more: Any) -> ActingClient:
        chosen = application or app
        chosen.test_client_class = ActingClient
        client = chosen.test_client()
        client.caller = make_caller(uid, **more)
        return client

    return make


@pytest.fixture
def user(client_of: Callable[..., ActingClient]) -> Iterator[ActingClient]:
    """An ordinary user, uid 1000."""
    with client_of(1000) as client:
        yield client


@pytest.fixture
def root(client_of: Callable[..., ActingClient]) -> Iterator[ActingClient]:
    with client_of(0) as client:
        yield client


@pytest.fixture
def refusal() -> Refusal:
    """A refusal with everything in it."""
    return Refusal(
        Code.INSUFFICIENT_CORE,
        "no device has 64 free CUs",
        "ask for less, or wait",
        (
            DeviceRefusal(
                "0000:c1:00.0/0",
                Code.INSUFFICIENT_CORE,
                "0 of 64 CUs are free",
                (1001, 1002),
                2_000 * SECOND_NS,
            ),
            DeviceRefusal("0000:c2:00.0/0", Code.CARD_CORDONED, "draining"),
        ),
    )
