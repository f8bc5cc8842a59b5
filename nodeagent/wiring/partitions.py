"""Builds what shows and changes partition modes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from nodeagent import config as settings
from nodeagent.adapters.kfd_usage import kfd_holders
from nodeagent.adapters.partitions import PartitionFiles
from nodeagent.adapters.stuck import name_of
from nodeagent.adapters.sysfs import SysTree
from nodeagent.domain.clock import Clock
from nodeagent.domain.partition import Switch
from nodeagent.ledger.boot_file import BootFile
from nodeagent.service.partitioning import Partitioning
from nodeagent.service.switches import Switches
from nodeagent.wiring.leases import Base
from nodeagent.wiring.node import Node
from nodeagent.wiring.state import SWITCHES


def build_switches(config: settings.Config, clock: Clock) -> Switches:
    """The switches under way, kept over restarts."""
    return Switches(BootFile(config.state.directory / SWITCHES, clock, Switch.of))


def build_partitioning(
    config: settings.Config, node: Node, base: Base, files: PartitionFiles | None = None
) -> Partitioning:
    """Over *node*'s own files, or those that are given. The kernel is asked only where it is this node's."""
    chosen = config.partitions.modes if config.partitions.apply_at_start else {}
    return Partitioning(
        base.ledger,
        base.clock,
        base.survey,
        base.changes,
        files or PartitionFiles(node.tree),
        partial(holders, node.tree),
        writable=node.announced or files is not None,
        chosen=chosen,
    )


def holders(tree: SysTree, gpu_ids: frozenset[int]) -> Mapping[int, str]:
    """By pid, the names of those who have one of these GPUs open."""
    return {pid: name_of(pid, tree.root / "proc") for pid in kfd_holders(tree, gpu_ids)}
