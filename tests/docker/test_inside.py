"""What holds a program in a container of a lease: the hook, whatever it makes of its environment."""

from __future__ import annotations

import pytest

from .kinds import DOCKER, with_each_engine
from .leased import ASK, Container, Leased

pytestmark = [pytest.mark.docker, pytest.mark.hook]
HELD = ["allocated", "denied"]
GIB = 1 << 30
SIZES = (str(3 * GIB), str(3 * GIB))  # of four


def take(leased: Leased) -> tuple[str, ...]:
    """The command that takes most of a slice, and then as much again."""
    return ("/bin/take", str(leased.agent.call("GET", "/v1/devices")["devices"][0]["gpu_id"]), *SIZES)


def on_first(leased: Leased) -> str:
    """The option for a lease of the GPU that `take` takes of."""
    return f"--lease-device={leased.agent.call('GET', '/v1/devices')['devices'][0]['device']}"


@pytest.fixture
def container(fake_leased: Leased) -> Container:
    """A container of a glibc image that waits, on the first GPU."""
    return fake_leased.start(on_first(fake_leased), image="glibc")


@pytest.mark.way_out(
    "a container of `gpulease docker run`: a glibc, an old glibc, and a musl image",
    tier="hook",
    outcome="refused over the limit",
)
@with_each_engine
@pytest.mark.parametrize("name", ["glibc", pytest.param("old", marks=pytest.mark.slow), "musl"])
def test_an_image_is_held(fake_leased: Leased, name: str) -> None:
    """Its program gets what its slice has, and no more."""
    done = fake_leased.run(take(fake_leased), on_first(fake_leased), image=name)
    assert done.stdout.split() == HELD, done.stderr


@pytest.mark.way_out(
    "`docker exec`, `docker exec CONTAINER env -i CMD`",
    tier="hook",
    outcome="refused over the limit",
)
@pytest.mark.parametrize("before", [(), ("env", "-i")], ids=["as it is", "env -i"])
def test_exec_is_held(fake_leased: Leased, container: Container, before: tuple[str, ...]) -> None:
    """What is started in it later is in the lease, with or without its environment."""
    said = fake_leased.host.said("exec", container.id, *before, *take(fake_leased))
    assert said.split() == HELD


def test_exec_shares_the_slice(fake_leased: Leased) -> None:
    """Two programs of one container have one slice between them."""
    keep = (*take(fake_leased)[:3], "stay")
    container = fake_leased.start(on_first(fake_leased), image="glibc", command=keep)
    host = fake_leased.host
    host.until(lambda: "allocated" in host.said("logs", container.id))
    assert host.said("exec", container.id, *take(fake_leased)[:3]) == "denied"


@pytest.mark.way_out(
    "a static program's image",
    tier="hook",
    outcome="supervised; where its engine is too old for that, not started: memory hook is refused",
)
@pytest.mark.slow
@pytest.mark.parametrize("kind", [DOCKER], ids=["docker"], indirect=True)
def test_a_static_image_with_a_floor_is_refused(fake_leased: Leased, kind: object) -> None:
    """Where nothing can load the hook, and no supervisor be had, a lease that must be held is not either."""
    words = fake_leased.words("--rm", "--require=memory=hook", on_first(fake_leased), image="static")
    done = fake_leased.host.run(*words, *take(fake_leased))
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr.splitlines()[-1].startswith("gpulease: ")
    assert ASK[0] in words
