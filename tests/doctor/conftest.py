"""Nodes as trees of files: machine files, with what a test adds to them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent.adapters import machine
from nodeagent.config import Cdi, Config, Docker, Server, Slurm, State
from nodeagent.doctor import Scene


class Node:
    """A node below a directory of its own, and the scene on it."""

    def __init__(self, root: Path, state: Path) -> None:
        self.root = root
        self.state = state
        self.config = Config(
            state=State(directory=state),
            server=Server(socket=root / "run/api.sock"),
            cdi=Cdi(directory=root / "run/cdi"),
            docker=Docker(socket=root / "run/docker.sock"),
            slurm=Slurm(spool=root / "var/spool"),
        )
        self.write("proc/self/mountinfo", "")

    def is_a(self, name: str) -> Node:
        """Give it the files of the shipped machine *name*."""
        shutil.rmtree(self.root)
        machine.materialise(machine.find(name), self.root)
        self.write("proc/self/mountinfo", "")
        return self

    def write(self, path: str, text: str | bytes) -> Path:
        """Put a file there."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(text, bytes):
            file.write_bytes(text)
        else:
            file.write_text(text, encoding="utf-8")
        return file

    def cgroup2(self) -> Path:
        """Mount cgroup2, with what the kernel shows of it."""
        mount = self.root / "cgroup"
        mount.mkdir(exist_ok=True)
        self.write("proc/self/mountinfo", f"30 1 0:26 / {mount} rw - cgroup2 cgroup2 rw\n")
        (mount / "cgroup.procs").write_text("")
        (mount / "cgroup.controllers").write_text("cpu cpuset memory pids\n")
        (mount / "cgroup.subtree_control").write_text("cpu cpuset memory pids\n")
        return mount

    def upstream(self, pci: str, *bridges: str) -> None:
        """Put the card *pci* below *bridges*, the one at the processor first, as sysfs has it."""
        devices = self.root / "sys/bus/pci/devices"
        inside = Path("../../../devices/pci0000:00", *bridges)
        for depth, bridge in enumerate(bridges, 1):
            (devices / Path("../../../devices/pci0000:00", *bridges[:depth])).mkdir(
                parents=True, exist_ok=True
            )
            (devices / bridge).symlink_to(Path("../../../devices/pci0000:00", *bridges[:depth]))
        (devices / pci).rename(devices / inside / pci)
        (devices / pci).symlink_to(inside / pci)

    def scene(self, **changes: object) -> Scene:
        return replace(Scene(config=self.config, root=self.root, root_user=True), **changes)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node without a GPU, to begin with."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    root = tmp_path / "root"
    root.mkdir()
    return Node(root, state)
