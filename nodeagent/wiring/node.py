"""The node that the agent works on, this one or one that is simulated, and what is read from its tree."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from nodeagent import config as settings
from nodeagent.adapters import machine
from nodeagent.adapters.container_processes import LeaseMounts
from nodeagent.adapters.drm import vram_used
from nodeagent.adapters.fdinfo import drm_clients
from nodeagent.adapters.kernel_log import KernelLog
from nodeagent.adapters.kfd_usage import kfd_use, sdma_us
from nodeagent.adapters.launcher import HERE, Launcher
from nodeagent.adapters.slurm_conf import STANDARD, SlurmConf
from nodeagent.adapters.sysfs import SysTree
from nodeagent.adapters.uevents import UeventSocket
from nodeagent.domain.errors import OutsideFault
from nodeagent.service.sampling import Sources


@dataclass(frozen=True, slots=True)
class Node:
    """The sys tree that the agent works on, and what to call it."""

    tree: SysTree
    root: Path
    machine: str
    announced: bool = False  # whether what the kernel tells is about this tree
    launcher: Launcher = HERE
    uevents: UeventSocket = field(default_factory=UeventSocket)
    kernel_log: KernelLog = field(default_factory=KernelLog)

    def listen(self) -> None:
        """Open what the kernel tells, before the first fork: it waits there while there is no worker.

        Where it cannot be opened each worker tries again, and says what it lacks.
        """
        for source in (self.uevents, self.kernel_log) if self.announced else ():
            with contextlib.suppress(OutsideFault):
                source.open()

    @property
    def kfd_processes(self) -> Path:
        """Where KFD lists the processes that have it open."""
        return self.root / "sys/class/kfd/kfd/proc"


def this_node(launcher: Launcher = HERE) -> Node:
    return Node(SysTree(Path("/")), Path("/"), "this node", announced=True, launcher=launcher)


def simulated_node(name_or_path: str, state_dir: Path, launcher: Launcher = HERE) -> Node:
    """A machine file as a tree below *state_dir*. Processes and cgroups stay those of the real machine."""
    simulated = machine.find(name_or_path)
    root = state_dir / "machine"
    shutil.rmtree(root, ignore_errors=True)
    machine.materialise(simulated, root)
    kind = "made up" if simulated.made_up else "simulated"
    return Node(machine.SimulatedTree(root, simulated), root, f"{kind}: {simulated.name}", launcher=launcher)


def slurm_conf(config: settings.Config, node: Node) -> SlurmConf:
    """Slurm's files: a simulated node has its own, if any, and never this host's."""
    named, given = config.slurm.gres_conf, os.environ.get("SLURM_CONF")
    return SlurmConf(
        Path(named) if named else None,
        Path(given) if given and node.root == Path("/") else None,
        standard=tuple(node.root / path.relative_to("/") for path in STANDARD),
    )


def figures(node: Node, mounts: LeaseMounts | None = None) -> Sources:
    """Who uses what: from the node's own tree, so that a simulated one never shows the real one's.

    *mounts* says whose the processes in containers are.
    """
    return Sources(
        kfd=lambda pids: kfd_use(node.tree, pids),
        drm=lambda pids: drm_clients(node.root / "proc", pids),
        sdma_us=lambda pids: sdma_us(node.tree, pids),
        mounted=mounts.of if mounts else lambda pid: None,
    )


def used_bytes(tree: SysTree, pool: str) -> int | None:
    """What a pool uses, whoever it is; None where the driver does not tell."""
    used = vram_used(tree, pool)
    return used if isinstance(used, int) else None
