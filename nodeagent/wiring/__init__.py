"""Builds the agent: the one place that knows which adapter serves which use case, simulated or real."""

from nodeagent.wiring.callers import classifier, identifier
from nodeagent.wiring.graph import Built, build
from nodeagent.wiring.node import Node, simulated_node, slurm_conf, this_node
from nodeagent.wiring.state import LEDGER, instance, ledger_path, stem

__all__ = [
    "LEDGER",
    "Built",
    "Node",
    "build",
    "classifier",
    "identifier",
    "instance",
    "ledger_path",
    "simulated_node",
    "slurm_conf",
    "stem",
    "this_node",
]
