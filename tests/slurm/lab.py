"""The cluster with an agent on its node of GPUs: what jobs see, what leases they have, what they leave."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .agent import ServedAgent
from .cluster import Cluster
from .node import Node

VERDICTS = "/run/nodeagent/slurm"
SPOOL = "/var/spool/nodeagent/slurm"
SCRIPT_SETTINGS = "/etc/nodeagent/prolog.conf"
# Says what a task sees, in one piece when all of it is there. The argument is the file.
SHOW = 'env -0 >"$1.new"; grep ^0:: /proc/self/cgroup >>"$1.new"; mv "$1.new" "$1"'


@dataclass(frozen=True)
class Task:
    """What the one task of a job saw: its environment, and its cgroup."""

    job: str
    environment: dict[str, str]
    cgroup: str


@dataclass
class Lab:
    """One cluster and one agent."""

    cluster: Cluster
    agent: ServedAgent
    shown: int = 0
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def node(self) -> Node:
        """The node of GPUs."""
        return self.agent.node

    def run(self, *options: str, user: str = "alice", **more: Any) -> Task:
        """Run a job of one task to its end."""
        file = self._file()
        done = self.cluster.srun(*options, "sh", "-c", SHOW, "sh", str(file), user=user, **more)
        assert file.exists(), f"{done.stderr}\n{self.agent.log()}\n{self.cluster.logs()}"
        return _task(file)

    def hold(self, *options: str, user: str = "alice", **more: Any) -> Task:
        """Start a job of one task that runs until it is cancelled."""
        file = self._file()
        script = f"set -- {file}\n{SHOW}\nexec sleep 600"
        job = self.cluster.sbatch(script, *options, user=user, output=f"{file}.out", **more)
        self.cluster.until(file.exists, lambda: f"job {job}: {self.cluster.job(job)}\n{self.agent.log()}")
        return _task(file)

    def end_jobs(self) -> None:
        """End what a test left running, and wait until it is gone."""
        for process in self.started:
            process.kill()
            process.communicate()
        self.started.clear()
        if jobs := self.cluster.queue():
            self.cluster.cancel(*jobs)

    def settings(self, **values: object) -> None:
        """Write the settings of Slurm's scripts on the node of GPUs."""
        lines = "".join(f"{key}={value}\n" for key, value in values.items())
        self.node.path(SCRIPT_SETTINGS).write_text(lines)

    def records(self) -> list[str]:
        """The scripts' own files on the node: verdicts, jobs let through, calls that nobody answered."""
        places: Sequence[str] = (VERDICTS, SPOOL)
        found = [file for place in places for file in self.node.path(place).rglob("*") if file.is_file()]
        return sorted(f"{file.parent.name}/{file.name}" for file in found)

    def leftovers(self) -> list[str]:
        """What is there although no job is, and the nodes that jobs put out of service."""
        left = [f"file {name}" for name in self.records()] + self.agent.leftovers()
        states = self.cluster.states()
        drained = [name for name in self.cluster.nodes if states[name] != "idle"]
        return left + [f"{name} is {states[name]}: {self.cluster.reason(name)}" for name in drained]

    def _file(self) -> Path:
        """A new file that every user can write to."""
        self.shown += 1
        return self.cluster.directory / "shown" / str(self.shown)


def _task(file: Path) -> Task:
    *variables, cgroup = file.read_text().split("\0")
    environment = dict(variable.split("=", 1) for variable in variables)
    return Task(environment["SLURM_JOB_ID"], environment, cgroup.strip().removeprefix("0::"))
