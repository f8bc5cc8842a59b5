"""The cluster with an agent on its node of GPUs: what jobs see, what leases they have, what they leave."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .agent import ServedAgent
from .cluster import Cluster
from .node import Node

RECORDS = ("/run/nodeagent/slurm", "/var/spool/nodeagent/slurm")
SCRIPT_SETTINGS = "/etc/nodeagent/prolog.conf"
# Writes what a task sees to the file named by its argument, which is there when it is whole.
SHOW = """\
#!/bin/sh
env -0 >"$1.new"
grep ^0:: /proc/self/cgroup >>"$1.new"
mv "$1.new" "$1"
"""


@dataclass(frozen=True)
class Task:
    """What a task of a job saw: its environment, and its cgroup."""

    job: str
    environment: dict[str, str]
    cgroup: str


@dataclass
class Lab:
    """One cluster and one agent."""

    cluster: Cluster
    agent: ServedAgent
    files: int = 0

    def __post_init__(self) -> None:
        self._shown = self.cluster.directory / "shown"
        self._shown.mkdir()
        self._shown.chmod(0o1777)
        self.show.write_text(SHOW)
        self.show.chmod(0o755)

    @property
    def show(self) -> Path:
        """A program that every user can run: it writes what it sees to the file named by its argument."""
        return self.cluster.directory / "show"

    @property
    def node(self) -> Node:
        """The node of GPUs."""
        return self.agent.node

    def file(self) -> Path:
        """The path of a new file, which every user can make."""
        self.files += 1
        return self._shown / str(self.files)

    def public(self, text: str) -> Path:
        """A new program, or a file, with this text, for every user."""
        file = self.file()
        file.write_text(text)
        file.chmod(0o755)
        return file

    def task(self, file: Path) -> Task:
        """What the program `show` saw, once it has written it to *file*."""
        self.cluster.until(file.exists, why=self.why)
        *variables, cgroup = file.read_text(errors="surrogateescape").split("\0")
        environment = dict(variable.split("=", 1) for variable in variables)
        return Task(environment["SLURM_JOB_ID"], environment, cgroup.strip().removeprefix("0::"))

    def run(self, *options: str, **more: Any) -> Task:
        """Run a job of one task to its end."""
        file = self.file()
        done = self.cluster.srun(*options, str(self.show), str(file), **more)
        assert done.returncode == 0, f"{done.stderr}\n{self.why()}"
        return self.task(file)

    def hold(self, *options: str, **more: Any) -> Task:
        """Start a job of one task that runs until it is cancelled."""
        file = self.file()
        self.cluster.sbatch(f"{self.show} {file}\nexec sleep 600", *options, **more)
        return self.task(file)

    def settings(self, **values: object) -> None:
        """Write the settings of Slurm's scripts on the node of GPUs."""
        lines = "".join(f"{key}={value}\n" for key, value in values.items())
        self.node.path(SCRIPT_SETTINGS).write_text(lines)

    def new_boot(self) -> None:
        """Have the node say that it was booted anew."""
        boot = self.file()
        boot.write_text(f"{uuid.uuid4()}\n")
        self.node.space.run("mount", "--bind", str(boot), "/proc/sys/kernel/random/boot_id")

    def records(self) -> list[str]:
        """The scripts' own files on the node: verdicts, jobs let through, calls that nobody answered."""
        found = [file for place in RECORDS for file in self.node.path(place).rglob("*") if file.is_file()]
        return sorted(f"{file.parent.name}/{file.name}" for file in found)

    def leftovers(self) -> list[str]:
        """What is there although no job is, and the nodes that jobs put out of service."""
        left = [f"file {name}" for name in self.records()] + self.agent.leftovers()
        return left + [f"{name} is {why}" for name, why in self.cluster.out_of_service().items()]

    def await_nothing(self) -> None:
        """Wait until jobs, leases and records are gone: what a broken agent missed, it makes up for."""
        self.cluster.ended()
        self.cluster.until(lambda: not self.records() + self.agent.leftovers(), why=self.why)

    def why(self) -> str:
        """What may explain that something never came true."""
        return f"{self.cluster.queue()}\n{self.records()}\n{self.agent.log()}"
