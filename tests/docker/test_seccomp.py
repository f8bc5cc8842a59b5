"""Containers whose programs cannot load the hook: a supervisor is asked about what they allocate."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from typing import Any

import pytest

from nodeagent.domain.seccomp import profile

from .kinds import DOCKER, NEWER_DOCKER, PODMAN
from .leased import Container, Leased
from .test_inside import GIB, HELD, on_first, take

pytestmark = pytest.mark.docker
More = Callable[[], Any]
SUPERVISED = "--require=memory=supervised"
ALLOC = 0xC0284B16
with_listeners = pytest.mark.parametrize(
    "kind",
    [NEWER_DOCKER, pytest.param(PODMAN, marks=pytest.mark.slow)],
    ids=lambda kind: kind.name,
    indirect=True,
)


def gpu(leased: Leased, *steps: str) -> tuple[str, ...]:
    """The command that takes *steps* on the first GPU: see tests/supervisor/gpu.c."""
    device = leased.agent.call("GET", "/v1/devices")["devices"][0]
    return ("/bin/gpu", "/dev/kfd", f"/dev/dri/{device['render_node']}", str(device["gpu_id"]), *steps)


def supervisors(leased: Leased) -> list[str]:
    """The pids of the supervisors in the host, which has its own mounts; other tests have some of theirs."""
    there = "exec pgrep -x --ns $$ --nslist mnt gpulease-superv"
    return leased.host.run("sh", "-c", there).stdout.split()


@pytest.fixture
def container(fake_leased: Leased) -> Container:
    """A container of a static image that holds half of its slice and waits, on the first GPU."""
    keep = (*take(fake_leased)[:2], str(2 * GIB), "stay")
    made = fake_leased.start(on_first(fake_leased), image="static", command=keep)
    fake_leased.host.until(lambda: "allocated" in fake_leased.host.said("logs", made.id))
    return made


@pytest.fixture
def more(fake_leased: Leased, container: Container) -> Callable[[], Any]:
    """What a further program of the container gets that asks for a GiB, and then for two."""
    words = ("exec", container.id, *take(fake_leased)[:2], str(GIB), str(2 * GIB))
    return lambda: fake_leased.host.client(*words)


@pytest.mark.way_out(
    "a container of `gpulease docker run` of a static program's image",
    tier="supervised",
    outcome="refused over the limit",
)
@with_listeners
@pytest.mark.parametrize(
    "demand", [(), pytest.param((SUPERVISED,), marks=pytest.mark.slow)], ids=["unasked", "demanded"]
)
def test_a_static_image_is_held(fake_leased: Leased, kind: object, demand: tuple[str, ...]) -> None:
    """Its program gets what its slice has, and no more; what holds it is stated."""
    done = fake_leased.run(take(fake_leased), *demand, on_first(fake_leased), image="static")
    assert done.stdout.split() == HELD, done.stderr
    assert "memory supervised" in done.stderr


@pytest.mark.way_out(
    "int 0x80, x32, requests of odd sizes, in a container of a static image",
    tier="supervised",
    outcome="refused over the limit; x32 does not exist",
)
@pytest.mark.slow
@with_listeners
def test_other_ways_to_the_driver_are_held(fake_leased: Leased, kind: object) -> None:
    """What the profile asks about is what the supervisor's own filter asks about."""
    over = str(5 * GIB)
    steps = (
        f"int80:{over}",
        f"x32:{over}",
        f"raw:0x4b16:{over}",
        f"svm:{over}",
        f"gem:{over}",
        f"raw:{ALLOC}:4096",
    )
    done = fake_leased.run(gpu(fake_leased, *steps, "criu", "dumb"), on_first(fake_leased), image="static")
    said = dict(line.split("=") for line in done.stdout.splitlines())
    assert int(said.pop("x32")) == errno.ENOSYS
    assert {name: int(number) for name, number in said.items()} == {
        **dict.fromkeys(("int80", "svm", "gem"), errno.ENOMEM),
        "raw": 0,
        "criu": errno.EPERM,
        "dumb": errno.EPERM,
    }, done.stderr


@pytest.mark.way_out(
    "`docker exec` in a container of a static image", tier="supervised", outcome="refused over the limit"
)
@with_listeners
def test_exec_shares_the_slice(fake_leased: Leased, more: More, kind: object) -> None:
    """What is started in it later is asked about, too, and all have one slice between them."""
    assert more().stdout.split() == HELD


@pytest.mark.way_out(
    "the supervisor of a container is killed",
    tier="supervised",
    outcome="every allocation fails, and nothing more is started in it",
)
@with_listeners
def test_without_its_supervisor_nothing_is_had(
    fake_leased: Leased, container: Container, more: More, kind: object
) -> None:
    """Killed, it is not replaced: the container lives on, and no program comes in that nobody holds."""
    (supervisor,) = supervisors(fake_leased)
    fake_leased.host.run("kill", "-KILL", supervisor)
    fake_leased.host.until(lambda: not supervisors(fake_leased))
    done = more()
    assert done.returncode != 0
    assert "allocated" not in done.stdout
    assert fake_leased.state(container) == "active"


@pytest.mark.slow
@with_listeners
def test_the_agents_end_ends_no_supervisor(fake_leased: Leased, more: More, kind: object) -> None:
    """Killed and started again, the agent finds the container held as before."""
    before = supervisors(fake_leased)
    fake_leased.agent.kill()
    assert more().stdout.split() == HELD
    fake_leased.agent.start()
    assert supervisors(fake_leased) == before != []
    assert more().stdout.split() == HELD


@pytest.mark.slow
@with_listeners
def test_it_goes_with_the_lease(fake_leased: Leased, container: Container, kind: object) -> None:
    """After the release there is neither supervisor nor socket, and the container starts no more."""
    assert supervisors(fake_leased) != []
    fake_leased.host.said("kill", container.id)
    fake_leased.released(container)
    fake_leased.host.until(lambda: not supervisors(fake_leased))
    assert fake_leased.host.client("start", container.id).returncode != 0


@pytest.mark.way_out(
    "the seccomp profile of another's container, for one outside of the lease",
    tier="supervised",
    outcome="nothing is allocated: who asks is not in the lease's cgroup",
)
@pytest.mark.slow
@with_listeners
def test_who_is_outside_of_the_lease_gets_nothing(
    fake_leased: Leased, container: Container, kind: object
) -> None:
    """Everybody who may talk to docker can read where the supervisor listens."""
    host = fake_leased.host
    (listener,) = host.path("/run/nodeagent/containers").glob(f"*/{container.lease}/seccomp")
    stolen = host.directory / "stolen.json"
    stolen.write_text(json.dumps(profile(f"/{listener.relative_to(host.space.root)}")))
    words = (
        "run",
        "--rm",
        "--network=none",
        "--device=/dev/kfd",
        f"--security-opt=seccomp={stolen}",
        "static",
    )
    done = host.client(*words, *take(fake_leased)[:2], "4096")
    assert done.stdout.split() == ["denied"], done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kind", [DOCKER], ids=lambda kind: kind.name, indirect=True)
def test_an_engine_without_listeners_is_refused(fake_leased: Leased, kind: object) -> None:
    """The reason says which engine has them; without the demand the container runs, and nothing is stated."""
    done = fake_leased.run(take(fake_leased), SUPERVISED, on_first(fake_leased), image="static")
    assert done.returncode == 125
    assert "knows no seccomp listener: 23.0 or newer does" in done.stderr.splitlines()[-1]
    done = fake_leased.run(take(fake_leased), on_first(fake_leased), image="static")
    assert "memory advisory" in done.stderr


@pytest.mark.slow
@with_listeners
def test_a_profile_of_the_users_is_refused(fake_leased: Leased, kind: object) -> None:
    """It would take the place of what holds the lease; no lease is left."""
    own = "--security-opt=seccomp=unconfined"
    for demand in ((), (SUPERVISED,)):
        done = fake_leased.run(take(fake_leased), own, *demand, on_first(fake_leased), image="static")
        assert (done.returncode, done.stdout) == (125, "")
        assert "seccomp" in done.stderr.splitlines()[-1]


@pytest.mark.slow
@with_listeners
def test_what_an_engine_refuses_is_refused(fake_leased: Leased, kind: object) -> None:
    """The profile in the place of the engine's own lets no system call through that this one stops."""
    image = fake_leased.image(fake_leased.host, "static")
    plain = ("run", "--rm", "--network=none")
    free = _results(fake_leased.host.said(*plain, "--security-opt=seccomp=unconfined", image, "/bin/refused"))
    engines = _results(fake_leased.host.said(*plain, image, "/bin/refused"))
    ours = _results(fake_leased.run(("/bin/refused",), image="static").stdout)
    stopped = {call for call, result in engines.items() if result in _STOPPED and result != free[call]}
    assert len(stopped) > 60
    assert {call for call in stopped if ours[call] not in _STOPPED} == set()
    # Nor is it so strict that programs would notice: what it stops besides are few, and new or dangerous.
    beyond = {call for call in ours if ours[call] in _STOPPED and engines[call] not in _STOPPED}
    assert len(beyond) < 60, sorted(beyond)


_STOPPED = (errno.EPERM, errno.ENOSYS)


def _results(said: str) -> dict[tuple[str, str], int]:
    lines = [line.split() for line in said.splitlines()]
    return {(entry, number): int(result) for entry, number, result in lines}
