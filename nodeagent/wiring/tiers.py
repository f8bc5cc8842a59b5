"""Builds what the node holds leases with: each tier's adapters, its effects, and what it offers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from nodeagent import config as settings
from nodeagent.adapters.bank_files import BankFiles
from nodeagent.adapters.cdi_files import CdiFiles
from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.closure import OutsideCgroups
from nodeagent.adapters.display import lit_connector
from nodeagent.adapters.dmem import DmemController
from nodeagent.adapters.hook_files import HookFiles
from nodeagent.adapters.ipc import IpcSpace
from nodeagent.adapters.ipc_users import IpcUsers
from nodeagent.adapters.selftest import KFD_PROBE, SelfTest
from nodeagent.adapters.supervisor import Supervisor
from nodeagent.adapters.systemd import Systemd
from nodeagent.domain.clock import Clock
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.cdi import CDI, CdiDoor, CdiEffect
from nodeagent.service.cdi_users import CDI_USERS, CdiUsersEffect, CdiUsersMeans
from nodeagent.service.census import Census
from nodeagent.service.cgroup_effects import (
    ADOPTED,
    CGROUP,
    DMEM,
    OCCUPANTS,
    PROCESS,
    AdoptedEffect,
    CgroupEffect,
    DmemEffect,
    OccupantsEffect,
    ProcessEffect,
)
from nodeagent.service.closure import Closing
from nodeagent.service.contained import CONTAINER
from nodeagent.service.effects import Effect
from nodeagent.service.enforcement import Enforcement
from nodeagent.service.gate import GATE, Gate, GateEffect, GateMeans, GatePolicy
from nodeagent.service.grace import Grace, GracePeriods
from nodeagent.service.guest_records import GUEST
from nodeagent.service.hooked import HOOK, HookEffect, HookMeans
from nodeagent.service.ipc_effects import Counted, IpcEffect, IpcMeans
from nodeagent.service.job_effects import ByHome, Heirs, JobCgroupEffect, JobDmemEffect, JobOccupantsEffect
from nodeagent.service.kernel import KernelMeans
from nodeagent.service.kernel_tier import KernelTier
from nodeagent.service.means import Door, Means
from nodeagent.service.memory_banks import BANKS, BanksEffect, BanksMeans
from nodeagent.service.observing import OBSERVED, ObservedEffect
from nodeagent.service.obstacles import Obstacles
from nodeagent.service.private_ipc import PRIVATE_IPC, PrivateIpcEffect, PrivateIpcMeans
from nodeagent.service.proof import KFD, VRAM, Idle, KfdEffect, KfdMeans, VramEffect, VramMeans
from nodeagent.service.sampling import Sampler
from nodeagent.service.shared_memory import IPC, SharedMemory
from nodeagent.service.spared import Spared
from nodeagent.service.supervised import SUPERVISED, SupervisedEffect, SupervisedMeans
from nodeagent.service.supervised_containers import (
    SUPERVISED_CONTAINERS,
    SupervisedContainers,
    SupervisedContainersEffect,
)
from nodeagent.service.survey import Survey
from nodeagent.wiring.containers import Dock
from nodeagent.wiring.node import Node, figures, used_bytes


@dataclass(frozen=True, slots=True)
class Ground:
    """What the tiers stand on; *tree* is None where no cgroups can be made, *systemd* beside another init."""

    node: Node
    clock: Clock
    tree: CgroupTree | None
    systemd: Systemd | None
    hook: HookFiles
    banks: BankFiles
    cdi: CdiFiles
    in_use: Callable[[int], bool]  # whether a process has a GPU open
    idle: Idle  # what a pool used when nobody worked on it, bytes
    dock: Dock | None = None


@dataclass(frozen=True, slots=True)
class Tiers:
    """What this node holds leases with; *looks* is what the reconciler does for it at every look."""

    dmem: DmemController | None
    supervisor: Supervisor
    effects: Mapping[str, Effect]
    means: tuple[Means, ...]
    doors: tuple[Door, ...]
    beside_guests: tuple[Means, ...]  # what the first container in a lease has made for all
    obstacles: Obstacles
    looks: Mapping[str, Callable[[], None]]
    shared_memory: SharedMemory | None

    @property
    def kept(self) -> dict[str, Effect]:
        """The effects that the upkeep applies again where somebody spoiled them."""
        return {HOOK: self.effects[HOOK]}

    def open_up(self) -> None:
        """Take back what the settings do not close any more: VRAM outside leases, and device nodes."""
        for name in ("kernel", "gate"):
            if look := self.looks.get(name):
                look()


def build_tiers(
    config: settings.Config, ground: Ground, ledger: Ledger, survey: Survey, enforcement: Enforcement
) -> Tiers:
    """The tiers of the node, strongest first in what they offer, and what proves that a slice is back."""
    node, tree, hook = ground.node, ground.tree, ground.hook
    dmem = DmemController(tree) if tree else None
    supervisor = Supervisor(
        kfd=node.root / "dev/kfd",
        kfd_processes=node.kfd_processes,
        dri=node.root / "dev/dri",
        launcher=node.launcher,
    )
    kernel = _kernel_tier(config, ground, dmem, ledger, survey, enforcement)
    gate = Gate(
        ledger,
        ground.clock,
        survey,
        tree,
        node.tree,
        config.state.directory,
        _gate_policy(config),
        partial(lit_connector, node.tree),
        enforcement.opened,
    )
    grace = GracePeriods(_grace(config.release), lost=ledger.lost)
    effects = _effects(ground, ledger, dmem, kernel, grace)
    sources, tolerance = (
        figures(node, ground.dock.mounts if ground.dock else None),
        config.release.leak_tolerance_bytes,
    )
    sampler = Sampler(ledger, ground.clock, survey, tree, sources)
    kfd, used = partial(sources.kfd, None), partial(used_bytes, node.tree)
    obstacles = Obstacles(ledger, ground.clock, survey, tree, dmem, kfd, used)
    effects |= {
        KFD: KfdEffect(ledger, ground.clock, tree, kfd),
        VRAM: VramEffect(sampler, used, ground.clock, tolerance),
        HOOK: HookEffect(hook),
        SUPERVISED: SupervisedEffect(supervisor),
        PRIVATE_IPC: PrivateIpcEffect(supervisor),
        GATE: GateEffect(gate, survey),
        BANKS: BanksEffect(ground.banks),
        OBSERVED: ObservedEffect(),
    }
    if ground.dock is not None:
        effects |= {
            CONTAINER: ground.dock.effect(ledger),
            GUEST: ground.dock.guest_effect(hook),
            CDI: CdiEffect(ground.cdi, ground.dock.tickets),
            CDI_USERS: CdiUsersEffect(ground.clock, ground.dock.stopping().end_strays),
        }
    if ground.dock is not None and tree is not None:
        attending = SupervisedContainersEffect(supervisor, ground.dock.files, tree)
        effects |= {SUPERVISED_CONTAINERS: attending}
    shared_memory = None
    if tree is not None:
        shared_memory = _shared_memory(ground, tree, ledger)
        occupants = Spared(Counted(effects[OCCUPANTS], shared_memory.census), tree, enforcement.bypassed)
        effects |= {IPC: IpcEffect(ledger, shared_memory), OCCUPANTS: occupants}
    kernel_means = KernelMeans(dmem, kernel)
    # Undone from the last to the first: who died, then who might still enter, then the memory.
    banks = BanksMeans(_no_banks(config, ground.node))
    means: tuple[Means, ...] = (
        IpcMeans(_ipc_stays(config)),
        VramMeans(dmem, ground.idle, ground.clock, tolerance),
        kernel_means,
        SupervisedMeans(supervisor),
        PrivateIpcMeans(supervisor),
        HookMeans(hook if config.hook.enabled else None),
        GateMeans(gate),
        KfdMeans(ground.clock),
        banks,
        CdiUsersMeans(ground.clock),
    )
    # What a door is made of is the one's before it.
    doors: tuple[Door, ...] = ()
    if ground.dock is not None:
        supervised = SupervisedContainers(supervisor, ground.dock.engines.no_listener, kernel_means)
        doors = (supervised, ground.dock.door(), CdiDoor(ground.cdi if config.cdi.enabled else None))
    looks = {"bypass": enforcement.look, "gate": gate.look}  # told of before it is acted on
    looks |= {"hook": hook.probe} if config.hook.enabled else {}
    looks |= {"kernel": kernel.look} if kernel else {}
    looks |= {"census": shared_memory.census.look} if shared_memory else {}
    return Tiers(dmem, supervisor, effects, means, doors, (banks,), obstacles, looks, shared_memory)


def _kernel_tier(
    config: settings.Config,
    ground: Ground,
    dmem: DmemController | None,
    ledger: Ledger,
    survey: Survey,
    enforcement: Enforcement,
) -> KernelTier | None:
    tree = ground.tree
    if tree is None or dmem is None:
        return None
    outside = OutsideCgroups(tree, dmem, config.state.directory, ground.clock.boot_id)
    probe = (config.closure.probe,) if config.closure.probe else KFD_PROBE

    def leave_out(pci: str) -> str | None:
        connector = None if config.closure.displays else lit_connector(ground.node.tree, pci)
        return connector and f"{pci} drives a display at {connector}: see closure.displays"

    return KernelTier(
        dmem,
        Closing(outside, tree, ledger, survey, config.closure.exempt),
        SelfTest(tree, dmem, probe),
        ledger,
        survey,
        enabled=config.closure.enabled,
        leave_out=leave_out,
        opened=enforcement.opened,
        lifted=enforcement.bypassed,
    )


def _effects(
    ground: Ground,
    ledger: Ledger,
    dmem: DmemController | None,
    kernel: KernelTier | None,
    grace: GracePeriods,
) -> dict[str, Effect]:
    tree = ground.tree
    clock, heirs = ground.clock, Heirs(ledger)
    effects: dict[str, Effect] = {PROCESS: ProcessEffect(clock, ground.in_use)}
    if tree is not None:
        cgroup, occupants = CgroupEffect(tree, ground.systemd), OccupantsEffect(tree, grace)
        effects |= {
            CGROUP: ByHome(cgroup, JobCgroupEffect(tree, clock, heirs)),
            OCCUPANTS: ByHome(occupants, JobOccupantsEffect(tree, clock, heirs, grace)),
            ADOPTED: AdoptedEffect(tree, clock),
        }
        if dmem is not None:
            job = JobDmemEffect(tree, dmem, clock, heirs, kernel)
            effects[DMEM] = ByHome(DmemEffect(tree, dmem, kernel), job)
    return effects


def _no_banks(config: settings.Config, node: Node) -> str | None:
    """Why no container is shown memory banks of its slice's size, or None."""
    if not node.announced:
        return "containers see this machine's own topology, and not a simulated one"
    return None if config.cdi.banks else "turned off by cdi.banks"


def _shared_memory(ground: Ground, tree: CgroupTree, ledger: Ledger) -> SharedMemory:
    space = IpcSpace()
    census = Census(ledger, ground.clock, tree, space.device())
    return SharedMemory(ledger, ground.clock, tree, census, space, IpcUsers(space.in_use))


def _ipc_stays(config: settings.Config) -> str | None:
    """Why nothing in shared memory is removed, or None."""
    if not config.release.ipc:
        return "turned off by release.ipc"
    return None if os.geteuid() == 0 else "needs root: nobody else sees who has a file open"


def _grace(release: settings.Release) -> Grace:
    return Grace(release.interrupt_seconds, release.grace_seconds, signal.Signals[release.on_lost])


def _gate_policy(config: settings.Config) -> GatePolicy:
    devices = config.devices
    exempt = frozenset(devices.gate_exempt_uids)
    return GatePolicy(devices.gate == "acl", exempt, devices.gate_on_leftover == "kill")
