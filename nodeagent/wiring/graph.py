"""The object graph of an agent: adapters below, use cases over them, the API on top."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from flask import Flask

from nodeagent import __version__
from nodeagent import config as settings
from nodeagent.adapters.bank_files import BankFiles
from nodeagent.adapters.cdi_files import CdiFiles
from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.cgroup_mount import find_mount
from nodeagent.adapters.clock import SystemClock
from nodeagent.adapters.coredumps import dumps
from nodeagent.adapters.hook_files import HookFiles
from nodeagent.adapters.news import News
from nodeagent.adapters.processes import gpu_in_use
from nodeagent.adapters.scanner import Scanner, named
from nodeagent.adapters.service_manager import ServiceManager
from nodeagent.adapters.sidecar_files import SidecarFiles
from nodeagent.adapters.slurm_conf import SlurmConf
from nodeagent.adapters.subuids import Subuids
from nodeagent.adapters.systemd import find_systemd
from nodeagent.domain.baseline import Baseline
from nodeagent.domain.endpoint import Endpoint
from nodeagent.domain.request import Priority
from nodeagent.ledger.boot_file import BootFile
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.agent import Agent, AgentParts, Identity
from nodeagent.service.anchoring import Anchors
from nodeagent.service.baselines import Baselines, IdleUse
from nodeagent.service.bearers import Bearers
from nodeagent.service.containers import Containers
from nodeagent.service.differences import Differences
from nodeagent.service.drains import Drains
from nodeagent.service.dumps import Dumps
from nodeagent.service.enforcement import Enforcement
from nodeagent.service.foreign import Foreign
from nodeagent.service.measuring import Measuring
from nodeagent.service.ownership import Ownership
from nodeagent.service.partitioning import Partitioning
from nodeagent.service.plan import Planner
from nodeagent.service.quotas import Quotas
from nodeagent.service.reconcile import Periods, Reconciler
from nodeagent.service.reloads import Reloads
from nodeagent.service.sidecars import Sidecars
from nodeagent.service.survey import Survey
from nodeagent.service.uevents import Source, Uevents
from nodeagent.service.upkeep import Upkeep
from nodeagent.service.vigil import Listener
from nodeagent.service.watch import Watch
from nodeagent.wiring.api import build_api
from nodeagent.wiring.card_health import build_card_health
from nodeagent.wiring.classes import build_classes
from nodeagent.wiring.container_looks import ContainerUses, build_container_uses
from nodeagent.wiring.containers import Dock, build_dock
from nodeagent.wiring.enforcement import build_enforcement, foreign_stop
from nodeagent.wiring.heartbeat import build_beat
from nodeagent.wiring.idle import build_idle, idle_policy
from nodeagent.wiring.jobs import Jobs, build_jobs
from nodeagent.wiring.leases import Base, Leases, build_leases
from nodeagent.wiring.life import Life
from nodeagent.wiring.measuring import build_measuring
from nodeagent.wiring.node import Node, figures, slurm_conf, used_bytes
from nodeagent.wiring.partitions import build_partitioning, build_switches
from nodeagent.wiring.policies import (
    anchor_limits,
    device_rules,
    floor,
    most_queue_priority,
    quota_limits,
    watch_policy,
)
from nodeagent.wiring.quotas import build_quota_rules
from nodeagent.wiring.state import BASELINES, DUMPS, LEDGER, NAMES, stem
from nodeagent.wiring.tiers import Ground, Tiers, build_tiers
from nodeagent.wiring.web import build_web


@dataclass(frozen=True, slots=True)
class Built:
    """A built agent. *start* after the last fork; *stop* leaves every lease as it is.

    *leave*, before that, answers who waits. *open_up* takes back, without a start, what was closed to those
    without a lease and is not to be any more.
    """

    agent: Agent
    app: Flask
    ledger: Ledger
    reconciler: Reconciler
    start: Callable[[], None]
    leave: Callable[[], None]
    stop: Callable[[], None]
    open_up: Callable[[], None]
    web: Endpoint | None = None  # where the read-only listener is to be


def build(
    config: settings.Config,
    node: Node,
    *,
    clock: SystemClock | None = None,
    manager: ServiceManager | None = None,
    news: News | None = None,
) -> Built:
    """The object graph over *node*. Opens nothing and starts no thread: see `Built.start`.

    *manager* is told how the agent is; *news* comes from the process that replaces workers.
    """
    clock = clock or SystemClock()
    name = stem(config.state.directory)
    tree, no_tree = _cgroups(f"{name}.slice")
    systemd = find_systemd(tree.mount) if tree else None
    hook = HookFiles(name, launcher=node.launcher)
    conf, foreign = slurm_conf(config, node), Foreign()
    baselines = Baselines(BootFile(config.state.directory / BASELINES, clock, Baseline.of))
    ledger = Ledger(config.state.directory / LEDGER, clock)
    enforcement = build_enforcement(config, clock, ledger, name)
    dock = build_dock(
        config, clock, tree, name, node.root, systemd=systemd is not None, spared=enforcement.bypassed
    )
    base = _base(config, node, ledger, clock, tree, conf, baselines, foreign, dock, enforcement)
    sidecars = Sidecars(SidecarFiles(name), base.ledger, clock, tree)
    in_use = partial(gpu_in_use, kfd_proc_root=node.kfd_processes)
    banks, cdi = BankFiles(name, node.tree), CdiFiles(name, config.cdi.directory)
    ground = Ground(node, clock, tree, systemd, hook, banks, cdi, in_use, baselines.idle, dock)
    tiers = build_tiers(config, ground, ledger, base.survey, enforcement)
    partitioning = build_partitioning(config, node, base)
    measuring = build_measuring(config, node, base, baselines)
    leases = build_leases(
        base,
        tiers,
        Planner(
            tree,
            no_tree,
            tiers.means,
            clock,
            floor(config),
            tiers.doors,
            dock.engines.elsewhere,
        ),
        in_use=in_use,
        keep=sidecars.keep,
        shared_cu_percent=config.defaults.shared_cu,
        timeout_seconds=config.release.timeout_seconds,
        measuring=measuring,
        keep_seconds=config.limits.keep_seconds,
    )
    differences = Differences(base.ledger, clock, tree, systemd, (hook, banks, cdi, dock.files), sidecars)
    jobs = build_jobs(
        config.slurm, base, leases, conf=conf, effects=tiers.effects, doubts=differences.strangers
    )
    watches = dock.watches(base.changes.announce)
    containers = build_container_uses(dock, base, tiers, leases, watches, sidecars.keep)
    reconciler = build_reconciler(
        base,
        tiers,
        leases,
        jobs,
        differences,
        containers.looks,
        partitioning,
        Periods(
            quarantine=config.release.retry_seconds,
            event_seconds=config.events.days * 86_400,
            event_bytes=config.events.megabytes << 20,
        ),
        build_uevents(config, node, base, leases, node.uevents) if node.announced else None,
        build_beat(manager, config.server.socket),
        {"reloads": Reloads(news, base.ledger, base.changes)} if news else {},
    )
    identity = Identity(socket.gethostname(), node.machine, __version__)
    most = most_queue_priority(config)
    agent = build_agent(base, tiers, leases, jobs, identity, containers, measuring, partitioning, most)
    watch = _watch(config, node, base, tiers, leases, baselines, foreign, differences, dock, measuring)
    directories = (banks, hook, dock.files)
    threads = tuple(watches.values())
    life = Life(base, leases, reconciler, watch, baselines, sidecars, directories, threads, node.machine)
    web = build_web(config.web)
    app = build_api(config, agent, clock, web)
    endpoint = web.endpoint if web else None
    return Built(
        agent, app, base.ledger, reconciler, life.start, life.leave, life.stop, tiers.open_up, endpoint
    )


def build_agent(
    base: Base,
    tiers: Tiers,
    leases: Leases,
    jobs: Jobs,
    identity: Identity,
    containers: ContainerUses,
    measuring: Measuring,
    partitioning: Partitioning,
    queue_priority: Priority,
) -> Agent:
    """The façade over all use cases."""
    return Agent(
        AgentParts(
            ledger=base.ledger,
            clock=base.clock,
            survey=base.survey,
            drains=Drains(base.ledger, base.clock, base.changes),
            enforcement=base.enforcement,
            granter=leases.granter,
            queue=leases.queue,
            attacher=leases.attacher,
            launcher=leases.launcher,
            releaser=leases.releaser,
            measuring=measuring,
            changes=base.changes,
            identity=identity,
            told=leases.journal.told,
            left=tiers.shared_memory.view if tiers.shared_memory else None,
            views=containers.views,
            container_leases=containers.looks.named,
            hosting=containers.hosting,
            queue_priority=queue_priority,
            tiers=leases.planner.tiers,
            unready=jobs.readiness.why_not,
            observed=leases.observing.counts,
            slurm=jobs.slurm,
            partitioning=partitioning,
            rules=base.quotas.rules,
            classes=base.classes,
        )
    )


def build_reconciler(
    base: Base,
    tiers: Tiers,
    leases: Leases,
    jobs: Jobs,
    differences: Differences,
    containers: Containers,
    partitioning: Partitioning,
    periods: Periods,
    uevents: Uevents | None,
    beat: Callable[[], None] = lambda: None,
    listeners: Mapping[str, Listener] = {},
) -> Reconciler:
    """What compares ledger and reality, tiers' and jobs' own looks included."""
    return Reconciler(
        base.ledger,
        base.clock,
        base.survey,
        base.anchors,
        leases.granter,
        leases.queue,
        leases.releaser,
        base.changes,
        differences,
        base.tree,
        periods,
        beat,
        looks={
            **tiers.looks,
            **jobs.looks,
            "containers": containers.look,
            "partitions": partitioning.look,
        },
        spared=base.enforcement.bypassed,
        listeners={**({"uevents": uevents} if uevents else {}), **jobs.listeners, **listeners},
    )


def build_uevents(config: settings.Config, node: Node, base: Base, leases: Leases, source: Source) -> Uevents:
    """What listens to the kernel's events from *source*, and looks for the dumps of those it did not hear."""
    kept = BootFile(config.state.directory / DUMPS, base.clock, str)
    return Uevents(
        source,
        base.clock,
        base.ledger,
        base.survey,
        leases.releaser,
        base.changes,
        Dumps(partial(dumps, node.tree), kept),
    )


def _base(
    config: settings.Config,
    node: Node,
    ledger: Ledger,
    clock: SystemClock,
    tree: CgroupTree | None,
    conf: SlurmConf,
    baselines: Baselines,
    foreign: Foreign,
    dock: Dock,
    enforcement: Enforcement,
) -> Base:
    scanner = Scanner(
        node.tree,
        reserve_percent=config.devices.reserve_percent,
        include_apus=config.devices.include_apus,
        idle=baselines.idle,
        names=BootFile(config.state.directory / NAMES, clock, named),
        rules=device_rules(config),
    )
    owned = Ownership(conf, config.devices.owner).of
    owner_of = Subuids().owner
    bearers = Bearers(ledger, dock.engines) if config.docker.enabled else None
    return Base(
        ledger,
        clock,
        tree,
        Survey(
            ledger,
            scanner.scan,
            scanner.generation,
            foreign.by_device,
            owned,
            build_switches(config, clock),
            build_card_health(config, node, ledger, clock),
        ),
        Anchors(anchor_limits(config), clock, tree, bearers),
        Quotas(quota_limits(config), clock, owner_of, build_quota_rules(config, owner_of)),
        enforcement,
        build_classes(config, owner_of),
    )


def _watch(
    config: settings.Config,
    node: Node,
    base: Base,
    tiers: Tiers,
    leases: Leases,
    baselines: Baselines,
    foreign: Foreign,
    differences: Differences,
    dock: Dock,
    measuring: Measuring,
) -> Watch:
    upkeep = Upkeep(base.ledger, base.clock, base.locks, tiers.kept)
    used = partial(used_bytes, node.tree)
    sources = figures(node, dock.mounts)
    idle = build_idle(idle_policy(config), node, base, leases, sources, measuring)
    idle_use = IdleUse(base.ledger, base.survey, baselines, used, differences.strangers)
    return Watch(
        base.ledger,
        base.clock,
        base.survey,
        leases.releaser,
        base.changes,
        base.tree,
        tiers.dmem,
        sources,
        foreign,
        watch_policy(config),
        [measuring, upkeep, idle_use, idle],
        foreign_stop(config, dock, base.ledger, base.enforcement),
        measuring.note_over,
        base.enforcement.bypassed,
    )


def _cgroups(name: str) -> tuple[CgroupTree | None, str | None]:
    """The instance's cgroup subtree, or why there can be none."""
    mount = find_mount()
    if mount is None:
        return None, "no cgroup2 mount: leases are held by process"
    tree = CgroupTree(mount, name)
    why = tree.writable()
    return (tree, None) if why is None else (None, f"{why}: leases are held by process")
