"""Hosts with real engines; each test finds them without containers and leases, and must leave them so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.fakekfd.fuse_kfd import usable
from tests.slurm.agent import ServedAgent, served

from .agent import DockerAgent
from .host import Host, running_host
from .images import IMAGES
from .kinds import KINDS, NEWER_DOCKER, Kind, params
from .leased import Leased

MACHINE = "mi300x-spx"
GPUS = 2  # of a host with the fake kernel's


class Lab:
    """Hosts by engine and GPUs, with an agent each; each is started when it is needed first."""

    def __init__(self, last: ExitStack, directory: Path) -> None:
        self._last = last
        self._directory = directory
        self._hosts: dict[tuple[str, int], tuple[Host, ServedAgent]] = {}

    def host(self, kind: Kind, gpus: int = 0) -> tuple[Host, ServedAgent]:
        """A host of *gpus* of the fake kernel's, or of the simulated machine's; skips where there is none."""
        if reason := kind.missing() or (usable() if gpus else None):
            pytest.skip(reason)
        key = kind.name, gpus
        if key not in self._hosts:
            host = self._last.enter_context(running_host(kind, gpus))
            agent = self._last.enter_context(
                served(DockerAgent(host, None if gpus else MACHINE, settings=""))
            )
            self._hosts[key] = host, agent
        return self._hosts[key]

    def load(self, host: Host, name: str) -> str:
        """Have an image on a host; its name."""
        if reason := IMAGES[name].missing():
            pytest.skip(reason)
        if host.client("image", "inspect", name).returncode:
            with IMAGES[name].archive(self._directory).open("rb") as file:
                host.said("import", "-", name, stdin=file)
        return name


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """All hosts of this session."""
    with TemporaryDirectory(prefix="images-") as directory, ExitStack() as last:
        yield Lab(last, Path(directory))


@pytest.fixture(scope="session", params=params(*KINDS.values()), ids=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each of the engines; the newer docker alone where slow tests are left out."""
    return request.param


@pytest.fixture
def engine(lab: Lab, kind: Kind) -> Iterator[Host]:
    """A host of each engine, with an agent on a simulated machine."""
    yield from clean(*lab.host(kind))


@pytest.fixture
def agent(lab: Lab, kind: Kind, engine: Host) -> ServedAgent:
    """The agent of that host."""
    return lab.host(kind)[1]


@pytest.fixture
def fake_engine(lab: Lab, kind: Kind) -> Iterator[Host]:
    """A host of each engine, with an agent on the fake kernel's GPUs."""
    yield from clean(*lab.host(kind, GPUS))


@pytest.fixture
def fake_agent(lab: Lab, kind: Kind, fake_engine: Host) -> ServedAgent:
    """The agent of that host."""
    return lab.host(kind, GPUS)[1]


@pytest.fixture
def newer(lab: Lab) -> Iterator[Host]:
    """A host with the newer docker alone, and an agent on a simulated machine."""
    yield from clean(*lab.host(NEWER_DOCKER))


@pytest.fixture
def leased(engine: Host, agent: ServedAgent, image: Callable[..., str]) -> Leased:
    """Starts containers in leases, on a host of each engine."""
    return Leased(engine, agent, image)


@pytest.fixture
def fake_leased(fake_engine: Host, fake_agent: ServedAgent, image: Callable[..., str]) -> Leased:
    """The same on the fake kernel's GPUs."""
    return Leased(fake_engine, fake_agent, image)


@pytest.fixture
def image(lab: Lab) -> Callable[..., str]:
    """Has an image on a host: `image(host, "glibc")` is its name there."""
    return lab.load


def clean(host: Host, agent: ServedAgent) -> Iterator[Host]:
    """No container and no lease before and after. A test's containers are removed; leases must go."""
    yield host
    host.remove_containers()
    host.until(lambda: not agent.leftovers())
