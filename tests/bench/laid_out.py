"""The agent on a tree that is there already, as a real node's is: `--simulate` names its directory.

A simulated machine's thousands of files are laid out at each start, which no real node needs.
"""

from __future__ import annotations

from pathlib import Path

from nodeagent import wiring
from nodeagent.adapters.launcher import HERE, Launcher
from nodeagent.adapters.sysfs import SysTree
from nodeagent.cli.main import main
from nodeagent.wiring import Node


def node_of(directory: str, state_dir: Path, launcher: Launcher = HERE) -> Node:
    root = Path(directory)
    return Node(SysTree(root), root, f"laid out: {root}", launcher=launcher)


if __name__ == "__main__":
    wiring.simulated_node = node_of
    main()
