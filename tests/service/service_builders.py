"""The services as wiring composes them, over a real ledger and a machine's files; and what to ask."""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from service_world import SCRIPTED, PlannerWithMore, ScriptedEffect, TurnedClock

from nodeagent.adapters import machine
from nodeagent.adapters.bank_files import BankFiles
from nodeagent.adapters.bypass_file import BypassFile
from nodeagent.adapters.cdi_files import CdiFiles
from nodeagent.adapters.cgroup import CgroupTree, OpenCgroup
from nodeagent.adapters.container_files import ContainerFiles
from nodeagent.adapters.container_processes import LeaseMounts
from nodeagent.adapters.hook_files import HookFiles
from nodeagent.adapters.partitions import PartitionFiles
from nodeagent.adapters.processes import gpu_in_use
from nodeagent.adapters.scanner import Scanner, named
from nodeagent.adapters.sidecar_files import SidecarFiles
from nodeagent.adapters.slurm_conf import SlurmConf
from nodeagent.adapters.sysfs import SysTree
from nodeagent.adapters.tickets import Tickets
from nodeagent.config import Closure, Config, Release, Slurm, State
from nodeagent.domain.baseline import Baseline
from nodeagent.domain.container import Container, Engine
from nodeagent.domain.device import Inventory
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.lease import AnchorKind, HeldSlice, HolderKind, Lease, LeaseState
from nodeagent.domain.request import Request, SliceRequest
from nodeagent.ledger.boot_file import BootFile
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.agent import Identity
from nodeagent.service.anchoring import AnchorLimits, Anchors
from nodeagent.service.baselines import Baselines
from nodeagent.service.bearers import Bearers
from nodeagent.service.differences import Differences
from nodeagent.service.enforcement import Enforcement
from nodeagent.service.engines import Engines
from nodeagent.service.engines import Source as EngineSource
from nodeagent.service.orders import AnchorOrder, Caller, Granted, Order, Queued
from nodeagent.service.plan import Planner
from nodeagent.service.quotas import QuotaLimits, Quotas
from nodeagent.service.reconcile import Periods
from nodeagent.service.sidecars import Sidecars
from nodeagent.service.survey import Survey
from nodeagent.service.uevents import Source
from nodeagent.wiring.card_health import build_card_health
from nodeagent.wiring.classes import build_classes
from nodeagent.wiring.container_looks import build_container_uses
from nodeagent.wiring.containers import Dock
from nodeagent.wiring.enforcement import modes_of
from nodeagent.wiring.graph import build_agent, build_reconciler, build_uevents
from nodeagent.wiring.jobs import build_jobs
from nodeagent.wiring.leases import Base, build_leases
from nodeagent.wiring.measuring import build_measuring
from nodeagent.wiring.node import Node
from nodeagent.wiring.partitions import build_partitioning, build_switches
from nodeagent.wiring.policies import device_rules, most_queue_priority
from nodeagent.wiring.quotas import build_quota_rules
from nodeagent.wiring.state import BASELINES, LEDGER, NAMES
from nodeagent.wiring.tiers import Ground, build_tiers

GIB, STEM = 1 << 30, "gpulease_test"
KILL, OPEN = Release(grace_seconds=0), Closure(enabled=False)
EVERY_LOOK = Periods(look=0, pause=0)  # a test that looks wants to see everything
ROOMY = QuotaLimits(live_leases=10_000, queued_leases=10_000, grants_per_second=1e9)
T = TypeVar("T")


def until(look: Callable[[], T], seconds: float = 20.0) -> T:
    """What *look* gives once that is true; an assertion after *seconds*."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.005)
    return found


class House:
    """One agent's services over a state directory. `die` leaves everything as a kill -9 would."""

    def __init__(
        self,
        state: Path,
        root: Path,
        clock: TurnedClock,
        *,
        name: str = "vega10",
        tree: CgroupTree | None = None,
        effect: ScriptedEffect | None = None,
        limits: QuotaLimits = ROOMY,
        owner_of: Callable[[int], int] = lambda uid: uid,
        timeout: float = 0.1,
        periods: Periods = EVERY_LOOK,
        hook: HookFiles | None = None,
        config: Mapping[str, Any] | None = None,
        source: Source | None = None,
        owned: Callable[[Inventory], Inventory] = lambda inventory: inventory,
        engines: Mapping[Engine, EngineSource] | None = None,
        files: Callable[[SysTree], PartitionFiles] | None = None,
    ) -> None:
        self.root, self.clock, self.tree, self.spool = root, clock, tree, state / "spool"
        site = {"release": KILL, "closure": OPEN, "slurm": Slurm(spool=self.spool), **(config or {})}
        settings = Config(state=State(directory=state), **site)
        node = Node(machine.SimulatedTree(root, machine.find(name)), root, name)
        self.ledger = Ledger(state / LEDGER, clock)
        self.baselines = Baselines(BootFile(state / BASELINES, clock, Baseline.of))
        self.bypass = BypassFile(STEM, root=state / "bypass", owner=os.geteuid())
        self.enforcement = Enforcement(clock, self.ledger, modes_of(settings), self.bypass.read)
        scanner = Scanner(
            node.tree,
            reserve_percent=1,
            include_apus=False,
            idle=self.baselines.idle,
            names=BootFile(state / NAMES, clock, named),
            rules=device_rules(settings),
        )
        switches = build_switches(settings, clock)
        health = build_card_health(settings, node, self.ledger, clock)
        self.survey = Survey(
            self.ledger, scanner.scan, scanner.generation, owned=owned, switches=switches, health=health
        )
        notes = state / "run/notes"
        self.dock = Dock(
            Engines(engines or {}, clock, unified=tree is not None, systemd=False),
            {},
            ContainerFiles(STEM, notes=notes, tickets=state / "run/tickets"),
            Tickets(state / "ticket.key"),
            LeaseMounts(notes / STEM),
            root,
            grace_seconds=0,
            spared=self.enforcement.bypassed,
        )
        bearers = Bearers(self.ledger, self.dock.engines) if settings.docker.enabled else None
        self.anchors = Anchors(AnchorLimits(), clock, tree, bearers)
        self.quotas = Quotas(limits, clock, owner_of, build_quota_rules(settings, owner_of))
        base = Base(
            self.ledger,
            clock,
            tree,
            self.survey,
            self.anchors,
            self.quotas,
            self.enforcement,
            build_classes(settings, owner_of),
        )
        self.changes, self.locks = base.changes, base.locks
        self.partitioning = build_partitioning(settings, node, base, files(node.tree) if files else None)
        self.hook = hook or HookFiles(STEM, root=state / "hook", library=state / "none.so")
        self.banks = BankFiles(STEM, node.tree, root=state / "run" / "banks")
        self.cdi = CdiFiles(STEM, state / "cdi")
        idle, filed = self.baselines.idle, (self.hook, self.banks, self.cdi)
        ground = Ground(node, clock, tree, None, *filed, self.in_use, idle, self.dock)
        tiers = build_tiers(settings, ground, self.ledger, self.survey, self.enforcement)
        scripted = {SCRIPTED: effect} if effect else {}
        self.tiers = replace(tiers, effects={**tiers.effects, **scripted})
        planned = PlannerWithMore if effect else Planner
        self.planner = planned(
            tree,
            None if tree else "none",
            self.tiers.means,
            clock,
            doors=self.tiers.doors,
            elsewhere=self.dock.engines.elsewhere,
        )
        self.sidecar_files = SidecarFiles(STEM, root=state / "run" / "leases")
        self.sidecars = Sidecars(self.sidecar_files, self.ledger, clock, tree)
        self.measuring = build_measuring(settings, node, base, self.baselines)
        leases = build_leases(
            base,
            self.tiers,
            self.planner,
            in_use=self.in_use,
            keep=self.sidecars.keep,
            shared_cu_percent=25,
            timeout_seconds=timeout,
            measuring=self.measuring,
            keep_seconds=settings.limits.keep_seconds,
        )
        self.journal, self.granter, self.releaser = leases.journal, leases.granter, leases.releaser
        self.queue = leases.queue
        self.differences = Differences(
            self.ledger, clock, tree, None, (*filed, self.dock.files), self.sidecars
        )
        self.jobs = build_jobs(
            settings.slurm,
            base,
            leases,
            conf=SlurmConf(standard=(root / "etc/slurm",)),
            effects=self.tiers.effects,
            doubts=self.differences.strangers,
        )
        self.uevents = build_uevents(settings, node, base, leases, source) if source else None
        self.containers = build_container_uses(self.dock, base, self.tiers, leases, {}, self.sidecars.keep)
        self.reconciler = build_reconciler(
            base,
            self.tiers,
            leases,
            self.jobs,
            self.differences,
            self.containers.looks,
            self.partitioning,
            periods,
            self.uevents,
        )
        self.agent = build_agent(
            base,
            self.tiers,
            leases,
            self.jobs,
            Identity("node", name, "0"),
            self.containers,
            self.measuring,
            self.partitioning,
            most_queue_priority(settings),
        )

    def in_use(self, pid: int) -> bool:
        return gpu_in_use(pid, self.root / "sys/class/kfd/kfd/proc")

    def open(self) -> House:
        """What wiring's start does, without its threads: tests call `look` themselves."""
        cgroups = self.tree.lease_ids() | self.tree.nested().keys() if self.tree else frozenset()
        self.ledger.open(floor=max(cgroups | self.sidecar_files.leases(), default=0))
        self.reconciler.recover()
        self.baselines.recall()
        self.reconciler.scan()
        self.reconciler.run_once()
        return self

    def die(self) -> None:
        self.reconciler.stop()
        self.releaser.close()
        wait(list(self.releaser._cleaners._running.values()), 5)  # the dead do nothing in the next one's way
        self.ledger.close()

    def look(self) -> None:
        """One look of the reconciler, and the end of the cleaning that it began."""
        self.reconciler.run_once()
        self.settle()

    def settle(self) -> None:
        until(lambda: not any(lease.state is LeaseState.RELEASING for lease in self.ledger.live()))

    def state(self, lease_id: int) -> LeaseState:
        lease = self.ledger.lease(lease_id)
        assert lease is not None
        return lease.state

    def grant(self, caller: Caller | None = None, **order: Any) -> Lease:
        """The lease that was granted or queued at once."""
        outcome = self.agent.grant(caller or admin(), order_of(**order))
        assert isinstance(outcome, Granted | Queued), outcome
        return outcome.lease

    def release(self, lease: Lease, caller: Caller | None = None) -> Lease:
        return self.agent.release(caller or admin(), lease.id, 10)

    def procs(self, lease: Lease) -> tuple[int, ...]:
        """Who is in the lease's cgroup."""
        with self._cgroup(lease) as cgroup:
            return cgroup.procs()

    def enter(self, lease: Lease, pid: int) -> None:
        """Put a process of the test into the lease's cgroup, as the kernel allows root to."""
        with self._cgroup(lease) as cgroup:
            cgroup.move(pid)

    def _cgroup(self, lease: Lease) -> OpenCgroup:
        assert self.tree is not None and lease.cgroup is not None
        ref = self.tree.resolve(lease.cgroup)
        assert ref is not None
        return self.tree.open(ref)

    def kinds(self, lease: Lease) -> list[str]:
        """The kinds of the lease's events, in order."""
        return [event.kind for event in self.ledger.events(lease=lease.id)]


def admin(pid: int | None = None) -> Caller:
    return Caller(0, 0, frozenset(), pid or os.getpid(), None, administrator=True)


def user(uid: int = 1000, pid: int | None = None) -> Caller:
    return Caller(uid, uid, frozenset(), pid or os.getpid(), None, administrator=False)


_keys = itertools.count(1)


def order_of(
    *,
    anchor: AnchorKind = AnchorKind.TTL,
    ttl: int | None = None,
    pid: int | None = None,
    cgroup: str | None = None,
    container: Container | None = None,
    wait: int = 0,
    request_id: str | None = None,
    digest: str = "body",
    holder: tuple[HolderKind, str] | None = None,
    request: Request | None = None,
    **wanted: Any,
) -> Order:
    """An order of one slice of *wanted*, anchored by time."""
    kind, holder_id = holder or (HolderKind.CLIENT, f"test-{next(_keys)}")
    return Order(
        request=request or Request(slices=(SliceRequest(**wanted),)),
        holder_kind=kind,
        holder_id=holder_id,
        anchor=AnchorOrder(AnchorKind.CONTAINER if container else anchor, ttl, pid, cgroup, container),
        request_id=request_id,
        digest=digest,
        wait_seconds=wait,
    )


def picture(ledger: Ledger) -> object:
    """Everything that the ledger holds and knows of leases, for an equality before and after."""
    return ledger.held(), ledger.leases(limit=1000)


def check_sound(held: Iterable[HeldSlice], house: House) -> None:
    """Told from outside: no CU twice (but for the one shared set), no byte and no queue slot too many."""
    inventory = house.agent.inventory()
    cus: Counter[tuple[tuple[str, int], int]] = Counter()
    pools: Counter[str] = Counter()
    slots: Counter[tuple[str, int]] = Counter()
    shared: dict[tuple[str, int], frozenset[int]] = {}
    for one in held:
        placed = one.placed
        where = (placed.device, placed.epoch)  # CUs of another epoch are others
        pools[placed.pool] += placed.vram_bytes
        slots[where] += placed.queue_slots
        mine = frozenset(placed.cus)
        if not placed.shared or where not in shared:
            cus.update((where, cu) for cu in mine)
        if placed.shared:
            assert shared.setdefault(where, mine) == mine
    assert all(times == 1 for times in cus.values())
    grantable: Mapping[str, int] = {pool.key: pool.grantable_bytes for pool in inventory.pools}
    # A pool whose device is away is counted when that is back.
    assert all(used <= grantable.get(pool, used) for pool, used in pools.items())
    limits = {device.key: device.queue_slots for device in inventory.devices}
    assert all(used <= limits.get(device, used) for (device, _), used in slots.items())


def outside() -> OutsideFault:
    return OutsideFault("/sys/fs/cgroup/x", "made to fail")


def touch_generation(root: Path, number: int) -> None:
    """Let KFD say that the topology changed."""
    (root / "sys/class/kfd/kfd/topology/generation_id").write_text(f"{number}\n")


def node_directory(root: Path, kfd_node: int) -> Path:
    return root / "sys/class/kfd/kfd/topology/nodes" / str(kfd_node)


def vanish(root: Path, kfd_node: int) -> None:
    """Take a device off the node, kept aside for `come_back`."""
    node_directory(root, kfd_node).rename(root / f"aside-{kfd_node}")


def come_back(root: Path, kfd_node: int) -> None:
    (root / f"aside-{kfd_node}").rename(node_directory(root, kfd_node))
