"""Whole processes, exec to exit: Slurm's scripts and the client beside curl, and curl beside nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from tests.bench.clients import Client, request
from tests.bench.figures import Figure, Subject, Taken, Target, Turn
from tests.bench.serving import FLOOR, Server, numbered_agent, scratch, serving
from tests.slurm_scripts.conftest import Site, install

JOBS = 64  # at once
USER = 61001
RENDERS = ",".join(str(minor) for minor in range(128, 192, 8))  # of the eight GPUs of mi300x-spx
GRES = f"Name=gpu File=/dev/dri/renderD[{RENDERS}]\nName=shard Count={JOBS}\n"
CURL = ("/usr/bin/curl", "-q", "--silent", "--fail", "--output", "/dev/null", "--unix-socket")
STEPD = Path(__file__).with_name("stepd.py")
RUNS = 4  # of each command in a turn
FIGURES = (
    Figure("curl", "one curl to the floor", "ms", "/bin/true"),
    Figure("python", "python -c pass", "ms", "/bin/true"),
    Figure("prolog", "Slurm's prolog, grant included", "ms", "one curl", guarded=True),
    Figure("task-prolog", "its task-prolog", "ms", "one curl", guarded=True),
    Figure("epilog", "its epilog, release and proof included", "ms", "one curl", guarded=True),
    Figure("run", "gpulease run true", "ms", "one curl", guarded=True),
    Figure("run-python", "the same", "ms", "python -c pass"),
    Figure("health", "nodeagent health", "ms", "python -c pass"),
)
BURST = (
    Figure(f"prologs-{JOBS}", f"{JOBS} prologs at once, until all are granted", "s",
           f"{JOBS} curls, floor's grants", Target("value", 1)),
    Figure(f"epilogs-{JOBS}", f"{JOBS} epilogs at once, until all are released", "s",
           f"{JOBS} curls, floor's releases"),
)  # fmt: skip


@dataclass(frozen=True)
class Node:
    """An agent for Slurm's jobs and for anybody, the floor beside it, and the scripts as installed."""

    agent: Server
    floor: Server
    site: Site
    stepd: Path  # an interpreter of that name

    def job(self, number: int) -> Mapping[str, str]:
        """What slurmd tells the scripts of a job with one shard of a GPU."""
        told = {"ID": number, "UID": USER, "GID": USER, "GPUS": number % 8, "RESTART_COUNT": 0}
        named = {f"SLURM_JOB_{name}": str(value) for name, value in told.items()}
        return {**named, "SLURM_JOB_EXTRA": "gpulease:shards=1", "SLURMD_NODENAME": "n0"}

    def script(self, name: str, number: int) -> float:
        """Milliseconds of the prolog or epilog of a job."""
        return ran([str(self.site.scripts / name)], self.job(number))

    def scripts(self, name: str, jobs: Sequence[int]) -> float:
        """Seconds of the prologs or epilogs of all *jobs*, started at once."""
        words = [str(self.site.scripts / name)]
        return together([words] * len(jobs), [self.job(number) for number in jobs])

    def expect(self, leases: int) -> None:
        """Raise RuntimeError unless so many are active."""
        answer = Client(self.agent.socket).call(request("GET", f"/v1/leases?limit={2 * JOBS}&state=active"))
        if answer.count(b'"state":"active"') != leases:
            raise RuntimeError(f"{leases} leases should be active: {answer[:2000]!r}")

    def task_prolog(self, number: int) -> float:
        """Milliseconds of a task-prolog of a job that has its lease."""
        told = {"SLURM_JOB_ID": number, "SLURM_JOB_GPUS": number % 8, "SLURM_STEP_GPUS": number % 8}
        words = [f"{name}={value}" for name, value in told.items()]
        program = str(self.site.scripts / "task-prolog")
        done = subprocess.run(
            [self.stepd, "-I", STEPD, str(USER), program, *words],
            env={"PYTHONHOME": "/usr"},
            cwd="/",
            capture_output=True,
            text=True,
            check=True,
        )
        *exports, last = done.stdout.split("\n")[:-1]
        took, status = last.split()
        if status != "0" or not any(one.startswith("export GPULEASE_ID=") for one in exports):
            raise RuntimeError(f"task-prolog: {done.stdout}{done.stderr}")
        return float(took)

    def curl(self, *words: str, target: str = "nothing") -> list[str]:
        """A call to the floor."""
        return [*CURL, str(self.floor.socket), *words, f"http://localhost/{target}"]

    def client(self, *words: str) -> float:
        """Milliseconds of `python -m` with *words*, which find the agent."""
        return ran([sys.executable, "-m", *words], {**os.environ, "GPULEASE_SOCKET": str(self.agent.socket)})


def ran(words: Sequence[str], environment: Mapping[str, str] | None = None) -> float:
    """Milliseconds of a command that must succeed."""
    began = time.perf_counter()
    done = subprocess.run(words, env=environment, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    took = (time.perf_counter() - began) * 1e3
    if done.returncode or done.stderr:
        raise RuntimeError(f"{words}: {done.returncode}: {done.stderr.decode(errors='replace')}")
    return took


def node(last: ExitStack) -> Node:
    """Both servers, until *last* ends."""
    directory = last.enter_context(scratch())
    (directory / "gres.conf").write_text(GRES, encoding="utf-8")
    settings = directory / "nodeagent.toml"
    settings.write_text(
        f'[devices]\nowner = "any"\n[slurm]\ngres_conf = "{directory}/gres.conf"\n'
        f'spool = "{directory}/spool"\nrequest_from = "extra"\n[release]\ngrace_seconds = 0\n',
        encoding="utf-8",
    )
    agent = last.enter_context(serving((*numbered_agent(last), "--config", str(settings))))
    floor = last.enter_context(serving(FLOOR))
    site = install(directory)
    site.configure(socket=agent.socket)
    stepd = directory / "slurmstepd"
    shutil.copy(os.path.realpath("/usr/bin/python3"), stepd)
    return Node(agent, floor, site, stepd)


def turns() -> Iterator[Turn]:
    with ExitStack() as last:
        here = node(last)
        for number in count(1000, RUNS):
            took: dict[str, list[float]] = {}

            def put(name: str, milliseconds: float, took: dict[str, list[float]] = took) -> None:
                took.setdefault(name, []).append(milliseconds)

            for job in range(number, number + RUNS):
                put("true", ran(["/bin/true"]))
                put("curl", ran(here.curl()))
                put("python", ran([sys.executable, "-c", "pass"]))
                put("prolog", here.script("prolog", job))
                put("task-prolog", here.task_prolog(job))
                put("epilog", here.script("epilog", job))
                put("run", here.client("gpulease", "run", "--cu", "5%", "--vram", "5%", "--", "true"))
                put("health", here.client("nodeagent.cli.main", "health", "--socket", str(here.agent.socket)))
            beside = {"curl": "true", "python": "true", "health": "python"}
            turn = {
                name: Taken(values, took[beside.get(name, "curl")])
                for name, values in took.items()
                if name != "true"
            }
            yield {**turn, "run-python": Taken(took["run"], took["python"])}


def burst() -> Iterator[Turn]:
    """The scripts of many jobs at once, and as many curls to the floor; its leases are numbered from 1."""
    body = ("--header", "Content-Type: application/json", "--data-binary", "{}")
    with ExitStack() as last:
        here = node(last)
        for done in count(0, JOBS):
            jobs = range(done + 1, done + JOBS + 1)
            granting = [here.curl(*body, target="v1/leases") for _ in jobs]
            releasing = [here.curl("--request", "DELETE", target=f"v1/leases/{job}") for job in jobs]
            prologs = Taken([here.scripts("prolog", jobs)], [together(granting)])
            here.expect(JOBS)
            epilogs = Taken([here.scripts("epilog", jobs)], [together(releasing)])
            here.expect(0)
            yield {f"prologs-{JOBS}": prologs, f"epilogs-{JOBS}": epilogs}


def together(commands: Sequence[Sequence[str]], each: Sequence[Mapping[str, str]] | None = None) -> float:
    """Seconds from the start of the first to the end of the last, *each* with its environment."""
    began = time.perf_counter()
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    started = [
        subprocess.Popen(words, env=environment, **quiet)
        for words, environment in zip(commands, each or [None] * len(commands), strict=True)
    ]
    codes = [one.wait() for one in started]
    took = time.perf_counter() - began
    if any(codes):
        raise RuntimeError(f"{commands[0][0]}: {codes}")
    return took


def missing() -> str | None:
    if os.geteuid() != 0 or not Path(CURL[0]).exists():
        return "Slurm's scripts are root's, and ask by curl"
    return None


SUBJECTS = {
    "commands": Subject("Whole processes", FIGURES, turns, count=6, quick=2, missing=missing),
    "burst": Subject(f"{JOBS} jobs at once", BURST, burst, count=5, quick=2, missing=missing),
}
