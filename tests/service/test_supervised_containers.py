"""When the containers of a lease are supervised, and what is said where they cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.domain.container import Container, Engine
from nodeagent.domain.guarantee import Hold, Memory, Requirement
from nodeagent.service.means import Setting
from nodeagent.service.supervised_containers import SUPERVISED_CONTAINERS, SupervisedContainers

from .conftest import House

OWN = {"lease": 7, "parent": None}
DEMANDED = Requirement(memory=Memory.SUPERVISED)
STATIC, GLIBC = Container(Engine.DOCKER, libc="static"), Container(Engine.DOCKER, libc="glibc-2.36")


class Able:
    """A supervisor that can be had, or not: *why*."""

    why: str | None = None

    def unavailable(self) -> str | None:
        return self.why


class Kernel:
    """What the kernel holds."""

    holds = Hold()

    def promise(self, setting: Setting) -> Hold:
        return self.holds


def no_listener(engine: Engine) -> str | None:
    return None if engine is Engine.DOCKER else f"{engine} knows none"


@pytest.fixture
def means() -> SupervisedContainers:
    """Of a node where docker can do it, and podman cannot."""
    return SupervisedContainers(Able(), no_listener, Kernel())


def setting(house: House, container: Container | None, demanded: Requirement | None = None) -> Setting:
    found = house.survey.found()
    return Setting(1000, demanded or Requirement(), OWN, False, (), found, container=container)


@pytest.mark.parametrize(
    ("container", "demanded", "applies"),
    [
        (STATIC, None, True),
        (replace(STATIC, libc="glibc-2.12"), None, True),
        (STATIC, DEMANDED, True),
        (GLIBC, DEMANDED, True),
        (GLIBC, None, False),
        (replace(STATIC, libc="musl-1.2.3"), None, False),
        (replace(STATIC, libc="unknown"), None, False),
        (replace(STATIC, engine=Engine.PODMAN), None, False),
        (None, DEMANDED, False),
    ],
)
def test_it_is_for_programs_without_the_hook(
    house: House, means: SupervisedContainers, container: Container | None, demanded, applies: bool
) -> None:
    """And for whoever demands it, with an engine that can."""
    given = setting(house, container, demanded)
    assert [one.kind for one in means.plan(7, given)] == [SUPERVISED_CONTAINERS] * applies
    assert means.promise(given) == (Hold(memory=Memory.SUPERVISED) if applies else Hold())


def test_what_the_kernel_holds_needs_no_supervisor(house: House) -> None:
    """The stronger tier is there, also for whoever demands the weaker one, and nothing is refused."""
    kernel = Kernel()
    kernel.holds = Hold(memory=Memory.KERNEL)
    means = SupervisedContainers(Able(), no_listener, kernel)
    for demanded in (None, DEMANDED):
        given = setting(house, STATIC, demanded)
        assert (means.plan(7, given), means.closed(given)) == ([], None)


def test_a_demand_that_cannot_be_met_is_refused_with_the_reason(house: House) -> None:
    """The engine, its cgroups, the supervisor: what is missing is named. Without the demand nothing is."""
    supervisor = Able()
    means = SupervisedContainers(supervisor, no_listener, Kernel())
    podman = setting(house, replace(STATIC, engine=Engine.PODMAN), DEMANDED)
    elsewhere = replace(setting(house, STATIC, DEMANDED), cgroup=None)
    assert means.closed(podman) == "supervised_containers: podman knows none"
    assert "version 1" in str(means.closed(elsewhere))
    assert means.closed(setting(house, STATIC, DEMANDED)) is None
    supervisor.why = "was not built"
    assert means.closed(setting(house, STATIC, DEMANDED)) == "supervised_containers: was not built"
    assert means.closed(setting(house, STATIC)) is None
    for given in (podman, elsewhere):
        assert (means.plan(7, given), means.promise(given)) == ([], Hold())


def test_cdi_devices_are_not_supervised(house: House, means: SupervisedContainers) -> None:
    """Whoever starts with one chooses his own profile."""
    assert means.plan(7, replace(setting(house, STATIC, DEMANDED), cdi=True)) == []
