"""What prolog, task-prolog and epilog add to an srun, by turns with the same on a cluster without them.

python tests/bench/slurm_cost.py     as root; needs what make test-slurm installs
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.slurm.agent import SOCKET, served_agent  # noqa: E402 - found by the path above
from tests.slurm.cluster import Cluster, missing, running_cluster  # noqa: E402
from tests.slurm.node import Node  # noqa: E402
from tests.slurm.settings import CALLS, OURS, SCRIPTS  # noqa: E402

TURNS = 50
BOTH = ("prolog", "epilog")
CURL = ("curl", "-q", "-s", "--unix-socket", SOCKET, "http://localhost/healthz")
# What slurmd says of a job, to run its scripts without Slurm.
JOB = (
    *("SLURM_JOB_ID=4000000", "SLURM_JOB_UID=61001", "SLURM_JOB_GID=61001", "SLURM_JOB_GPUS=0"),
    *("SLURM_JOB_RESTART_COUNT=0", "SLURMD_NODENAME=gpu0", "SLURM_CONF=/etc/slurm/slurm.conf"),
)
WARM = 3  # first runs read programs from the disk
ALLOWED = 150.0  # milliseconds added, by the design
EPILOG = re.compile(
    r"^\[(\S+?)\] debug:  (?:credential for job|completed epilog for jobid) (\d+)", re.MULTILINE
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


def epilogs(cluster: Cluster) -> list[float]:
    """Milliseconds from the end of each job to that of its epilog, by slurmd's log."""
    log = (cluster.directory / "log/gpu0.log").read_text()
    times: dict[str, list[datetime]] = {}
    for at, job in EPILOG.findall(log):
        times.setdefault(job, []).append(datetime.fromisoformat(at))
    return [(last - first).total_seconds() * 1e3 for first, last in times.values()]


@contextmanager
def served(scripts: str) -> Iterator[Cluster]:
    """A cluster with the lines *scripts*, and an agent."""
    with running_cluster(scripts) as cluster, served_agent(cluster.nodes["gpu0"], "mi300x-spx"):
        yield cluster


def alone(node: Node, *words: str) -> float:
    """The milliseconds of a command on the node, without those of getting there."""
    return taken(node.space.command(*words)) - taken(node.space.command("true"))


def synced(file: int) -> float:
    """The milliseconds of a write of 4 KiB that is synced, as each of an agent's transactions has one."""
    began = time.perf_counter()
    os.write(file, bytes(4096))
    os.fdatasync(file)
    return (time.perf_counter() - began) * 1e3


def row(what: str, milliseconds: list[float]) -> str:
    lowest = sorted(milliseconds)[len(milliseconds) // 10]
    return f"{what:48} {median(milliseconds):8.1f} ms {lowest:8.1f} ms"


def main() -> None:
    if program := missing():
        sys.exit(f"slurm_cost: needs {program}")
    with running_cluster("") as plain, served(CALLS) as ours, served(OURS) as advised:
        turns = [[srun(one) for one in (plain, ours, advised)] for _ in range(WARM + TURNS)][WARM:]
        ended = epilogs(ours)[WARM:]
        node = ours.nodes["gpu0"]
        scripts = [
            [alone(node, "env", "-i", *JOB, f"{SCRIPTS}/{name}") for name in BOTH] for _ in range(TURNS)
        ]
        curls = [alone(node, *CURL) for _ in range(TURNS)]
        with (ours.directory / "floor").open("wb") as file:
            syncs = [synced(file.fileno()) for _ in range(TURNS)]
    added = [with_them - without for without, with_them, _ in turns]
    print(f"{'':48} {'median':>11} {'least tenth':>11}   of {TURNS}")
    print(row("srun without the scripts", [without for without, _, _ in turns]))
    print(row("srun with them", [with_them for _, with_them, _ in turns]))
    print(row("added by prolog and task-prolog", added))
    print(row("added by the epilog, after the job", ended))
    print(row("added in all", [one + other for one, other in zip(added, ended, strict=True)]))
    print(row("srun with them and PrologFlags=Alloc", [slowest for _, _, slowest in turns]))
    print(row("a prolog by itself", [prolog for prolog, _ in scripts]))
    print(row("an epilog by itself", [epilog for _, epilog in scripts]))
    print(row("one curl to the agent, of three", curls))
    print(row("one synced write of 4 KiB", syncs))
    print(f"allowed in all: {ALLOWED:.0f} ms")


if __name__ == "__main__":
    main()
