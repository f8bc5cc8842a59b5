"""The agent of a host with an engine."""

from __future__ import annotations

import os
import shutil
import stat

from tests.slurm.agent import ServedAgent

NULL = os.makedev(1, 3)  # can be opened, and is no GPU
GROUP = 109  # of the device nodes, as `render` is on many machines


class DockerAgent(ServedAgent):
    """One whose simulated GPUs can be given to containers."""

    def start(self) -> None:
        super().start()
        if self.machine:
            make_device_nodes(self)


def make_device_nodes(agent: ServedAgent) -> None:
    """Have device nodes for a simulated machine's GPUs, which has none: an engine takes nothing else."""
    directory = agent.state / "machine/dev"
    (directory / "dri").mkdir(parents=True)
    renders = [device["render_node"] for device in agent.call("GET", "/v1/devices")["devices"]]
    for name in ("kfd", *(f"dri/{render}" for render in renders)):
        os.mknod(directory / name, stat.S_IFCHR, NULL)
        (directory / name).chmod(0o660)
        shutil.chown(directory / name, group=GROUP)
