"""What measures the node for metrics."""

from __future__ import annotations

from functools import partial

from nodeagent.adapters.sensors import read_sensors
from nodeagent.service.baselines import Baselines
from nodeagent.service.measuring import Measuring, SensorReader
from nodeagent.wiring.leases import Base
from nodeagent.wiring.node import Node


def build_measuring(node: Node, base: Base, baselines: Baselines) -> Measuring:
    """Over the node's own tree, so that a simulated one shows no sensor of the real one's."""
    sensors = SensorReader(partial(read_sensors, node.tree))
    return Measuring(base.ledger, base.clock, base.survey, sensors, baselines.idle)
