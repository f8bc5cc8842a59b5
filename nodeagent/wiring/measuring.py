"""What measures the node for metrics."""

from __future__ import annotations

from functools import partial

from nodeagent import config as settings
from nodeagent.adapters.links import read_link
from nodeagent.adapters.sensors import read_sensors
from nodeagent.ledger.boot_file import BootFile
from nodeagent.service.baselines import Baselines
from nodeagent.service.hourly import Hourly, size_of
from nodeagent.service.kernel_faults import KernelFaults
from nodeagent.service.measuring import Measuring, SensorReader
from nodeagent.wiring.leases import Base
from nodeagent.wiring.node import Node
from nodeagent.wiring.state import FIRST_IDLE


def build_measuring(config: settings.Config, node: Node, base: Base, baselines: Baselines) -> Measuring:
    """Over the node's own tree: a simulated one shows no sensor of the real one's, nor its log."""
    sensors = SensorReader(partial(read_sensors, node.tree))
    hourly = Hourly(
        base.ledger,
        base.clock,
        baselines.idle,
        partial(read_link, node.tree),
        BootFile(config.state.directory / FIRST_IDLE, base.clock, size_of),
        tolerance_bytes=config.release.leak_tolerance_bytes,
    )
    faults = KernelFaults(node.kernel_log, base.ledger, base.clock) if node.announced else None
    return Measuring(base.ledger, base.clock, base.survey, sensors, baselines.idle, hourly, faults)
