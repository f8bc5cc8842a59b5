"""What prolog, task-prolog and epilog add to an srun, by turns with the same on a cluster without them."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from tests.bench.figures import Figure, Subject, Taken, Target, Turn
from tests.slurm.agent import served_agent
from tests.slurm.cluster import Cluster, missing, running_cluster
from tests.slurm.settings import CALLS

EPILOG = re.compile(
    r"^\[(\S+?)\] debug:  (?:credential for job|completed epilog for jobid) (\d+)", re.MULTILINE
)
PLAIN = "srun without scripts"
FIGURES = (
    Figure("srun", "srun of a job with two shards, prolog and task-prolog included", "ms", PLAIN),
    Figure("srun-all", "the same, and its epilog after it", "ms", PLAIN, Target("above", 150), guarded=True),
)


def taken(command: Sequence[str]) -> float:
    """The milliseconds of a command."""
    began = time.perf_counter()
    subprocess.run(command, capture_output=True, check=True)
    return (time.perf_counter() - began) * 1e3


def srun(cluster: Cluster) -> float:
    """The milliseconds of one srun of a job with two shards, after which nothing of it is left."""
    took = taken(cluster.head.command("srun", "--gres=shard:2", "true", user=61001))
    cluster.ended()
    return took


def last_epilog(cluster: Cluster) -> float:
    """Milliseconds from the end of the last job to that of its epilog, by slurmd's log."""
    log = (cluster.directory / "log/gpu0.log").read_text(encoding="utf-8")
    times: dict[str, list[datetime]] = {}
    for at, job in EPILOG.findall(log):
        times.setdefault(job, []).append(datetime.fromisoformat(at))
    first, last = times[max(times, key=int)]
    return (last - first).total_seconds() * 1e3


@contextmanager
def served(scripts: str) -> Iterator[Cluster]:
    """A cluster with the lines *scripts*, and an agent."""
    with running_cluster(scripts) as cluster, served_agent(cluster.nodes["gpu0"], "mi300x-spx"):
        yield cluster


def turns() -> Iterator[Turn]:
    with running_cluster("") as plain, served(CALLS) as ours:
        while True:
            without, with_them = srun(plain), srun(ours)
            yield {
                "srun": Taken([with_them], [without]),
                "srun-all": Taken([with_them + last_epilog(ours)], [without]),
            }


def left_out() -> str | None:
    program = missing()
    return f"needs {program}" if program else None


SUBJECTS = {"slurm": Subject("A job of Slurm's", FIGURES, turns, count=25, warm=3, missing=left_out)}
