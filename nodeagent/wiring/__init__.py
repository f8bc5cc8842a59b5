"""Builds the agent: the one place that knows which adapter serves which use case, simulated or real."""

from nodeagent.wiring.callers import classifier, identifier
from nodeagent.wiring.graph import Built, build
from nodeagent.wiring.node import Node, simulated_node, slurm_conf, this_node
from nodeagent.wiring.reload import Place, Reload, serving, tidy
from nodeagent.wiring.state import LEDGER, instance, ledger_path, stem

__all__ = [
    "LEDGER",
    "Built",
    "Node",
    "Place",
    "Reload",
    "build",
    "classifier",
    "identifier",
    "instance",
    "ledger_path",
    "serving",
    "simulated_node",
    "slurm_conf",
    "stem",
    "this_node",
    "tidy",
]
