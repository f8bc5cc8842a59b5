"""What `gpulease docker run` adds to `docker run` of the same image: both on one dockerd, in turns.

Run as root: ``python tests/bench/docker_cost.py``. A run is that of a small image's `true`, to its end.
Processor time is told beside: a busy machine leaves that as it is.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.docker.agent import DockerAgent
from tests.docker.host import Host, running_host
from tests.docker.images import IMAGES
from tests.docker.kinds import NEWER_DOCKER
from tests.slurm.agent import served

TURNS, WARM = 20, 3
ALLOWED = 80.0  # milliseconds, of the wrapper's
IMAGE = "busybox"
RUN = ("docker", "run", "--rm", "--network=none", "--init", IMAGE, "true")
LEASED = ("gpulease", "docker", "run", "--vram=4G", "--cu=25%", *RUN[2:])


@dataclass(frozen=True)
class Took:
    """Milliseconds of a command, and of those that a processor worked for its own processes."""

    wall: float
    processor: float

    def __sub__(self, other: Took) -> Took:
        return Took(self.wall - other.wall, self.processor - other.processor)


def taken(host: Host, *words: str) -> Took:
    """What a command on the host takes, without the daemons that it calls."""
    began, before = time.perf_counter(), processor()
    done = host.run(*words)
    took = Took((time.perf_counter() - began) * 1e3, processor() - before)
    assert done.returncode == 0, done.stderr
    return took


def processor() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) * 1e3


def turn(host: Host, agent: DockerAgent) -> tuple[Took, Took]:
    """A docker run, and the same in a lease."""
    plain, leased = taken(host, *RUN), taken(host, *LEASED)
    host.until(lambda: not agent.leftovers())
    return plain, leased


def row(what: str, milliseconds: list[float]) -> str:
    lowest = sorted(milliseconds)[len(milliseconds) // 10]
    return f"{what:48} {median(milliseconds):8.1f} ms {lowest:8.1f} ms"


def main() -> None:
    if reason := NEWER_DOCKER.missing() or IMAGES[IMAGE].missing():
        sys.exit(f"docker_cost: {reason}")
    with tempfile.TemporaryDirectory() as directory, running_host(NEWER_DOCKER) as host:
        with IMAGES[IMAGE].archive(Path(directory)).open("rb") as file:
            host.said("import", "-", IMAGE, stdin=file)
        with served(DockerAgent(host, "mi300x-spx", settings="")) as agent:
            turns = [turn(host, agent) for _ in range(WARM + TURNS)][WARM:]
    added = [leased - plain for plain, leased in turns]
    print(f"{'':48} {'median':>11} {'least tenth':>11}   of {TURNS}")
    print(row("docker run", [plain.wall for plain, _ in turns]))
    print(row("gpulease docker run", [leased.wall for _, leased in turns]))
    print(row("added by the wrapper", [one.wall for one in added]))
    print(row("processor time of docker run's client", [plain.processor for plain, _ in turns]))
    print(row("added to it by the wrapper", [one.processor for one in added]))
    print(f"allowed: {ALLOWED:.0f} ms")


if __name__ == "__main__":
    main()
