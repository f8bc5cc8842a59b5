"""Builds the agent: the one place that knows which adapter serves which use case, simulated or real."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from flask import Flask

from nodeagent import __version__
from nodeagent import config as settings
from nodeagent.adapters import machine
from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.cgroup_mount import find_mount
from nodeagent.adapters.clock import SystemClock
from nodeagent.adapters.coredumps import dumps
from nodeagent.adapters.hook_files import HookFiles
from nodeagent.adapters.peer import administrator, peer_of
from nodeagent.adapters.processes import gpu_in_use
from nodeagent.adapters.scanner import Scanner, named
from nodeagent.adapters.sidecar_files import SidecarFiles
from nodeagent.adapters.slurm_conf import STANDARD, SlurmConf
from nodeagent.adapters.subuids import Subuids
from nodeagent.adapters.sysfs import SysTree
from nodeagent.adapters.systemd import find_systemd
from nodeagent.adapters.uevents import UeventSocket
from nodeagent.api.admission import Classify, Lane
from nodeagent.api.app import ApiSettings, create_app
from nodeagent.api.waits import WaitingRoom
from nodeagent.domain.baseline import Baseline
from nodeagent.domain.guarantee import Memory, Requirement
from nodeagent.ledger.boot_file import BootFile
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.agent import Agent, AgentParts, Identity
from nodeagent.service.anchoring import AnchorLimits, Anchors
from nodeagent.service.attach import Attacher
from nodeagent.service.baselines import Baselines, IdleUse
from nodeagent.service.booking import Booker
from nodeagent.service.changes import Changes
from nodeagent.service.differences import Differences
from nodeagent.service.dumps import Dumps
from nodeagent.service.effects import Journal
from nodeagent.service.foreign import Foreign
from nodeagent.service.grant import Granter
from nodeagent.service.launch import Launcher
from nodeagent.service.locks import LeaseLocks
from nodeagent.service.orders import Caller
from nodeagent.service.ownership import Ownership
from nodeagent.service.placing import Placer
from nodeagent.service.plan import Planner
from nodeagent.service.quotas import QuotaLimits, Quotas
from nodeagent.service.reconcile import Periods, Reconciler
from nodeagent.service.release import Releaser
from nodeagent.service.sidecars import Sidecars
from nodeagent.service.survey import Survey
from nodeagent.service.uevents import Uevents
from nodeagent.service.upkeep import Upkeep
from nodeagent.service.watch import Watch, WatchPolicy
from nodeagent.slurm import Base, build_jobs
from nodeagent.tiers import Ground, Node, build_tiers, figures, used_bytes

LEDGER, BASELINES, NAMES, DUMPS = "ledger.sqlite3", "baselines", "names", "dumps"


@dataclass(frozen=True, slots=True)
class Built:
    """A built agent. *start* after the last fork; *stop* leaves every lease as it is."""

    agent: Agent
    app: Flask
    ledger: Ledger
    reconciler: Reconciler
    start: Callable[[], None]
    stop: Callable[[], None]


def ledger_path(config_path: Path | None, state_dir: Path | None) -> Path:
    """Where the ledger lies."""
    if state_dir is None:
        state_dir = settings.check(config_path or settings.DEFAULT_PATH)[0].state.directory
    return state_dir / LEDGER


def instance(state_dir: Path) -> str:
    """The agent's own cgroup subtree: one for each state directory, so that two agents never meet."""
    if state_dir == settings.DEFAULT_STATE:
        return "gpulease.slice"
    return f"gpulease_{hashlib.sha256(os.fsencode(state_dir.resolve())).hexdigest()[:12]}.slice"


def this_node() -> Node:
    return Node(SysTree(Path("/")), Path("/"), "this node", announced=True)


def simulated_node(name_or_path: str, state_dir: Path) -> Node:
    """A machine file as a tree below *state_dir*. Processes and cgroups stay those of the real machine."""
    simulated = machine.find(name_or_path)
    root = state_dir / "machine"
    shutil.rmtree(root, ignore_errors=True)
    machine.materialise(simulated, root)
    kind = "made up" if simulated.made_up else "simulated"
    return Node(machine.SimulatedTree(root, simulated), root, f"{kind}: {simulated.name}")


def build(config: settings.Config, node: Node, *, clock: SystemClock | None = None) -> Built:
    """The object graph over *node*. Opens nothing and starts no thread: see `Built.start`."""
    clock = clock or SystemClock()
    state_dir = config.state.directory
    ledger = Ledger(state_dir / LEDGER, clock)
    tree, no_tree = _cgroups(instance(state_dir))
    foreign, baselines = Foreign(), Baselines(BootFile(state_dir / BASELINES, clock, Baseline.of))
    scanner = Scanner(
        node.tree,
        reserve_percent=config.devices.reserve_percent,
        include_apus=config.devices.include_apus,
        idle=baselines.idle,
        names=BootFile(state_dir / NAMES, clock, named),
    )
    conf = slurm_conf(config, node)
    owned = Ownership(conf, config.devices.owner).of
    survey = Survey(ledger, scanner.scan, scanner.generation, foreign.by_device, owned)
    anchors = Anchors(_anchor_limits(config), clock, tree)
    changes, locks, owner_of = Changes(), LeaseLocks(), Subuids().owner
    quotas = Quotas(_quota_limits(config), clock, owner_of)
    in_use = partial(gpu_in_use, kfd_proc_root=node.root / "sys/class/kfd/kfd/proc")
    systemd = find_systemd(tree.mount) if tree else None
    hook = HookFiles(instance(state_dir).removesuffix(".slice"))
    sidecars = Sidecars(SidecarFiles(instance(state_dir).removesuffix(".slice")), ledger, clock, tree)
    tiers = build_tiers(
        config, Ground(node, clock, tree, systemd, hook, in_use, baselines.idle), ledger, survey
    )
    entered = tiers.shared_memory.census.enter if tiers.shared_memory else lambda lease, pid: None
    journal = Journal(ledger, tiers.effects)
    releaser = Releaser(
        ledger,
        journal,
        locks,
        changes,
        config.release.timeout_seconds,
        survey.away,
        tiers.obstacles.gather,
    )
    planner = Planner(tree, no_tree, tiers.means, clock, Requirement(memory=Memory(config.guarantee.memory)))
    booker = Booker(
        ledger, clock, survey, anchors, quotas, planner, Placer(planner, config.defaults.shared_cu)
    )
    granter = Granter(
        ledger, survey, anchors, booker, planner, journal, releaser, locks, changes, sidecars.keep
    )
    differences = Differences(ledger, clock, tree, systemd, hook, sidecars)
    attacher = Attacher(
        ledger, tree, planner, anchors, quotas, locks, changes, in_use, entered, sidecars.keep
    )
    jobs = build_jobs(
        config.slurm,
        Base(
            ledger=ledger,
            clock=clock,
            tree=tree,
            conf=conf,
            survey=survey,
            granter=granter,
            releaser=releaser,
            attacher=attacher,
            changes=changes,
            locks=locks,
            effects=tiers.effects,
            doubts=differences.strangers,
        ),
    )
    reconciler = Reconciler(
        ledger,
        clock,
        survey,
        anchors,
        granter,
        releaser,
        changes,
        differences,
        tree,
        Periods(quarantine=config.release.retry_seconds),
        looks={**tiers.looks, **jobs.looks},
        uevents=(
            Uevents(
                UeventSocket(),
                clock,
                ledger,
                survey,
                releaser,
                changes,
                Dumps(partial(dumps, node.tree), BootFile(state_dir / DUMPS, clock, str)),
            )
            if node.announced
            else None
        ),
    )
    agent = Agent(
        AgentParts(
            ledger=ledger,
            clock=clock,
            survey=survey,
            granter=granter,
            attacher=attacher,
            launcher=Launcher(
                ledger, tree, tiers.supervisor, anchors, quotas, locks, changes, entered, sidecars.keep
            ),
            releaser=releaser,
            changes=changes,
            identity=Identity(socket.gethostname(), node.machine, __version__),
            told=journal.told,
            left=tiers.shared_memory.view if tiers.shared_memory else None,
            tiers=planner.tiers,
            unready=jobs.readiness.why_not,
            slurm=jobs.slurm,
        )
    )
    app = create_app(
        agent,
        identifier(settings.gid_of(config.server.admin_group)),
        ApiSettings(
            clock,
            __version__,
            leases_open=config.privacy.leases == "open",
            waiting=WaitingRoom(owner_of=owner_of),
        ),
    )

    watch = Watch(
        ledger,
        clock,
        survey,
        releaser,
        changes,
        tree,
        tiers.dmem,
        figures(node),
        foreign,
        _watch_policy(config),
        [
            Upkeep(ledger, clock, locks, tiers.kept),
            IdleUse(ledger, survey, baselines, partial(used_bytes, node.tree)),
        ],
    )

    def start() -> None:
        if _open(ledger, tree, sidecars, node.machine):
            reconciler.recover()
            baselines.recall()
            survey.rescan()
            watch.guarded_look()
            reconciler.run_once()
        changes.listen(reconciler.wake)
        reconciler.start()
        watch.start()

    def stop() -> None:
        watch.stop()
        reconciler.stop()
        releaser.close()
        ledger.close()
        sidecars.leave()
        hook.leave()
        if tree is not None:
            tree.leave()

    return Built(agent, app, ledger, reconciler, start, stop)


def identifier(admin_gid: int | None) -> Callable[[Mapping[str, Any]], Caller]:
    """Who a request comes from: the peer of its socket, whatever its headers say."""

    def identify(environ: Mapping[str, Any]) -> Caller:
        peer = peer_of(environ["gunicorn.socket"])
        return Caller(
            uid=peer.uid,
            gid=peer.gid,
            groups=frozenset(peer.groups),
            pid=peer.pid,
            pidfd=peer.pidfd,
            administrator=administrator(peer, admin_gid=admin_gid),
        )

    return identify


def classifier(config: settings.Config, owner_of: Callable[[int], int] | None = None) -> Classify:
    """Whose threads a connection gets: administrators' are reserved, and a container's root is none.

    A subordinate uid's connections count for its owner, else one user could fill every place.
    """
    admin_gid, owner_of = settings.gid_of(config.server.admin_group), owner_of or Subuids().owner

    def classify(sock: socket.socket) -> Lane:
        with peer_of(sock) as peer:
            return Lane(owner_of(peer.uid), administrator(peer, admin_gid=admin_gid))

    return classify


def _open(ledger: Ledger, tree: CgroupTree | None, sidecars: Sidecars, machine: str) -> bool:
    """Open the ledger, with ids above whatever is left of a lost one; whether it can be written."""
    cgroups = tree.lease_ids() | tree.nested().keys() if tree else frozenset()
    ledger.open(floor=max(cgroups | sidecars.leases(), default=0))
    writable = ledger.health().writable
    if writable:
        with ledger.write(release=True) as tx:
            tx.event("started", uid=None, data={"version": __version__, "machine": machine})
    return writable


def _cgroups(name: str) -> tuple[CgroupTree | None, str | None]:
    """The instance's cgroup subtree, or why there can be none."""
    mount = find_mount()
    if mount is None:
        return None, "no cgroup2 mount: leases are held by process"
    tree = CgroupTree(mount, name)
    why = tree.writable()
    return (tree, None) if why is None else (None, f"{why}: leases are held by process")


def slurm_conf(config: settings.Config, node: Node) -> SlurmConf:
    """Slurm's files: a simulated node has its own, if any, and never this host's."""
    named, given = config.slurm.gres_conf, os.environ.get("SLURM_CONF")
    return SlurmConf(
        Path(named) if named else None,
        Path(given) if given and node.root == Path("/") else None,
        standard=tuple(node.root / path.relative_to("/") for path in STANDARD),
    )


def _watch_policy(config: settings.Config) -> WatchPolicy:
    watch = config.watch
    return WatchPolicy(
        watch.seconds, watch.on_overuse == "kill", watch.tolerance_percent, watch.stalled_seconds
    )


def _anchor_limits(config: settings.Config) -> AnchorLimits:
    defaults = config.defaults
    return AnchorLimits(defaults.ttl_seconds, defaults.max_ttl_seconds, defaults.start_seconds)


def _quota_limits(config: settings.Config) -> QuotaLimits:
    limits = config.limits
    return QuotaLimits(limits.live_leases, limits.queued_leases, limits.grants_per_second)
