"""What `gpulease docker run` adds to `docker run` of the same image: both on one dockerd, in turns.

A run is that of a small image's `true`, to its end. Processor time is told beside: a busy machine leaves
that as it is.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.bench.figures import Figure, Subject, Taken, Target, Turn
from tests.docker.agent import DockerAgent
from tests.docker.host import Host, running_host
from tests.docker.images import IMAGES
from tests.docker.kinds import NEWER_DOCKER
from tests.slurm.agent import served

IMAGE = "busybox"
RUN = ("docker", "run", "--rm", "--network=none", "--init", IMAGE, "true")
LEASED = ("gpulease", "docker", "run", "--vram=4G", "--cu=25%", *RUN[2:])
FIGURES = (
    Figure("docker-run", "gpulease docker run", "ms", "docker run", Target("above", 80), guarded=True),
    Figure("docker-processor", "processor time of its client", "ms", "docker run's"),
)


@dataclass(frozen=True)
class Took:
    """Milliseconds of a command, and of those that a processor worked for its own processes."""

    wall: float
    processor: float


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


def turns() -> Iterator[Turn]:
    with tempfile.TemporaryDirectory() as directory, running_host(NEWER_DOCKER) as host:
        with IMAGES[IMAGE].archive(Path(directory)).open("rb") as file:
            host.said("import", "-", IMAGE, stdin=file)
        with served(DockerAgent(host, "mi300x-spx", settings="")) as agent:
            while True:
                plain, leased = taken(host, *RUN), taken(host, *LEASED)
                host.until(lambda: not agent.leftovers())
                yield {
                    "docker-run": Taken([leased.wall], [plain.wall]),
                    "docker-processor": Taken([leased.processor], [plain.processor]),
                }


def missing() -> str | None:
    return NEWER_DOCKER.missing() or IMAGES[IMAGE].missing()


SUBJECTS = {"docker": Subject("A container's start", FIGURES, turns, count=15, warm=3, missing=missing)}
