"""A lease follows its container, not the client: each way to its end is a proved release."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.slurm.space import end as end_process

from .kinds import with_each_daemon
from .leased import Leased

pytestmark = pytest.mark.docker
# The second of them leaves the group and the session of its parent.
FAMILY = ("sh", "-c", "setsid sleep 600 & sleep 600 & sleep 600")

ENDS = {
    "stop": lambda host, id: host.said("stop", "--time=1", id),
    "kill": lambda host, id: host.said("kill", id),
    "remove": lambda host, id: host.said("rm", "--force", id),
    "killed from outside": lambda host, id: host.run("kill", "-9", str(host.inspect(id)["State"]["Pid"])),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_the_container_is_ended(leased: Leased, end: Callable[..., object]) -> None:
    """With all its processes, whoever ends it and however."""
    container = leased.start(command=FAMILY)
    leased.bound(container)
    end(leased.host, container.id)
    leased.released(container)


def test_a_copy_out_of_it_ends_nobody_else(leased: Leased) -> None:
    """An older docker mounts all that the container has for the whole node meanwhile: who is in the lease?"""
    container = leased.start()
    leased.bound(container)
    client, source = leased.host.kind.client, f"{container.id}:/"
    copying = leased.host.start(client, "cp", source, "-", stdout=subprocess.PIPE)
    try:
        assert copying.stdout is not None and os.read(copying.stdout.fileno(), 1)
        leased.bound(leased.start())  # the agent looked at all
        (place,) = leased.agent.slice.glob(f"*-{container.lease}.slice")
        inside = [pid for file in place.rglob("cgroup.procs") for pid in file.read_text().split()]
        assert len({Path(f"/proc/{pid}/ns/mnt").readlink() for pid in inside}) == 1
    finally:
        end_process(copying)


def test_the_lease_is_ended(leased: Leased) -> None:
    """Given back, it takes its container with it."""
    container = leased.start(command=FAMILY)
    leased.bound(container)
    leased.agent.call("DELETE", f"/v1/leases/{container.lease}")
    leased.released(container)
    assert not leased.host.inspect(container.id)["State"]["Running"]


def test_the_client_is_killed(leased: Leased) -> None:
    """SIGKILL to what was the wrapper changes nothing: the container and its lease live on."""
    client = leased.host.start(*leased.words(), *FAMILY, stdout=subprocess.DEVNULL)
    container = leased.running()
    leased.bound(container)
    leased.signal_client(client, signal.SIGKILL)
    client.wait()
    assert leased.host.inspect(container.id)["State"]["Running"]
    assert leased.state(container) == "active"
    leased.host.said("kill", container.id)
    leased.released(container)


@pytest.mark.slow
def test_the_agent_is_killed(leased: Leased) -> None:
    """After its restart the lease is the container's still, and ends with it."""
    container = leased.start()
    leased.bound(container)
    leased.agent.kill()
    leased.agent.start()
    leased.bound(container)
    leased.host.said("kill", container.id)
    leased.released(container)


@pytest.mark.slow
def test_it_ends_while_the_agent_is_away(leased: Leased) -> None:
    """What happened meanwhile is made up for."""
    container = leased.start()
    leased.bound(container)
    leased.agent.kill()
    leased.host.said("rm", "--force", container.id)
    leased.agent.start()
    leased.released(container)


@pytest.fixture
def restarted(leased: Leased) -> Iterator[Leased]:
    """The host of a daemon that a test restarts."""
    yield leased
    leased.host.restart_engine()


@with_each_daemon
@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL],
    ids=lambda number: number.name,
)
def test_the_daemon_is_restarted(restarted: Leased, number: signal.Signals) -> None:
    """It ends its containers, before or after; the lease ends with them."""
    container = restarted.start()
    restarted.bound(container)
    restarted.host.restart_engine(number)
    restarted.released(container)
    assert not restarted.host.inspect(container.id)["State"]["Running"]


@pytest.mark.slow
@with_each_daemon
def test_the_daemon_is_away(restarted: Leased) -> None:
    """With live-restore containers outlive it: no daemon is not no container."""
    host = restarted.host
    host.restart_engine(**{"live-restore": True})
    container = restarted.start()
    restarted.bound(container)
    pid = host.inspect(container.id)["State"]["Pid"]
    host.stop_engine()
    restarted.agent.call("POST", "/v1/reconcile")
    assert host.run("kill", "-0", str(pid)).returncode == 0
    assert restarted.state(container) == "active"
    host.start_engine(**{"live-restore": True})
    restarted.bound(container)
    host.said("kill", container.id)
    restarted.released(container)


def test_started_again_after_the_end(leased: Leased) -> None:
    """A container whose lease is over does not start again: its files are gone."""
    container = leased.start()
    leased.bound(container)
    leased.host.said("kill", container.id)
    leased.released(container)
    assert leased.host.client("start", container.id).returncode != 0
    assert not leased.host.inspect(container.id)["State"]["Running"]


def test_made_and_started(leased: Leased) -> None:
    """`create` takes the lease, `start` finds it."""
    container = leased.made(verb="create")
    assert leased.state(container) == "active"
    leased.host.said("start", container.id)
    leased.bound(container)
    leased.host.said("kill", container.id)
    leased.released(container)


def test_made_and_removed(leased: Leased) -> None:
    """A container that never started takes its lease with it."""
    container = leased.made(verb="create")
    leased.bound(container)
    leased.host.said("rm", container.id)
    leased.released(container)


@pytest.mark.slow
def test_restarted_by_its_policy(leased: Leased) -> None:
    """With --lease-restart an end is none while the engine starts it again; a stop is one."""
    container = leased.start("--restart=always", "--lease-restart", "--name=again")
    leased.bound(container)
    before = leased.host.inspect("again")["State"]["Pid"]
    leased.host.run("kill", "-9", str(before))
    leased.host.until(lambda: leased.host.inspect("again")["State"]["Pid"] not in (0, before))
    assert leased.state(container) == "active"
    leased.host.said("stop", "--time=1", "again")
    leased.released(container)


def test_a_restart_policy_alone_is_refused(leased: Leased) -> None:
    """Without --lease-restart a container that comes back would have no lease."""
    done = leased.host.run(*leased.words("--restart=always"), "true")
    assert done.returncode == 125
    assert done.stderr.splitlines()[-1].startswith("gpulease: ")
