"""Containers that are started from within a lease: they share it, and end with it, with each engine."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .leased import ASK, FOREVER, Leased

pytestmark = pytest.mark.docker
LEASE = ("gpulease", "run", *ASK, "--")


def words(leased: Leased, *options: str, verb: str = "run") -> tuple[str, ...]:
    """The words of a call up to the container's command, which asks for nothing."""
    image = leased.image(leased.host, "busybox")
    return ("gpulease", leased.host.kind.client, verb, "--network=none", *options, image)


def within(leased: Leased, script: str, *call: str, **more: Any) -> Any:
    """A shell in a lease, which has the words of *call* for its arguments."""
    return leased.host.run(*LEASE, "sh", "-c", script, "sh", *call, **more)


def test_a_container_shares_the_lease_that_it_was_started_in(leased: Leased) -> None:
    """There is one lease; the container has its files and is over before it, and nothing is left."""
    call = words(leased, "--rm")
    done = within(leased, 'exec "$@"', *call, "cat", "/etc/gpulease/lease", "/proc/self/cgroup")
    assert done.returncode == 0, f"{done.stderr}\n{leased.host.log()}"
    (lease,) = leased.agent.leases("released,active,releasing")[-1:]
    assert f"lease={lease['id']}\n" in done.stdout
    assert f"gpulease: lease {lease['id']}, which this runs in: " in done.stderr
    leased.host.until(lambda: not leased.agent.leftovers())


def test_the_end_of_the_lease_ends_its_containers(leased: Leased) -> None:
    """Detached ones, too: by their engine, before the slice is free. They do not start again."""
    call = words(leased, "--detach")
    done = within(leased, '"$@" && "$@"', *call, *FOREVER)
    assert done.returncode == 0, f"{done.stderr}\n{leased.host.log()}"
    containers = [leased.container(name) for name in done.stdout.split()]
    assert len({one.lease for one in containers}) == 1 and len(containers) == 2
    for container in containers:
        leased.released(container)
        assert not leased.host.inspect(container.id)["State"]["Running"]
        assert leased.host.client("start", container.id).returncode != 0


def test_a_killed_client_leaves_its_container_in_the_lease(leased: Leased) -> None:
    """It goes on, bound, until the lease ends: as when scancel reaches docker's client alone."""
    script = '"$@" & echo $!; wait; sleep 600'
    call = (*words(leased), *FOREVER)
    shell = leased.host.start(*LEASE, "sh", "-c", script, "sh", *call, stdout=subprocess.PIPE)
    client = shell.stdout.readline().strip()
    container = leased.running()
    leased.host.until(lambda: container.id in bound_ids(leased))
    assert leased.host.run("kill", "-KILL", client).returncode == 0
    assert leased.host.inspect(container.id)["State"]["Running"]
    assert leased.state(container) == "active"
    leased.signal_client(shell, signal.SIGTERM)
    leased.released(container)
    assert not leased.host.inspect(container.id)["State"]["Running"]


def test_a_container_that_ended_leaves_the_lease_to_the_others(leased: Leased) -> None:
    """Its files go with it, and the lease's do not."""
    script = 'one=$("$@") && two=$("$@") && "$0" rm -f $one >&2 && sleep 600'
    call = (*words(leased, "--detach"), *FOREVER)
    shell = leased.host.start(*LEASE, "sh", "-c", script, leased.host.kind.client, *call)
    leased.host.until(lambda: ended_ids(leased))
    container = leased.running()
    assert leased.state(container) == "active"
    notes = leased.host.path("/run/nodeagent/containers") / leased.agent.slice.stem / str(container.lease)
    assert len(list(notes.iterdir())) == 1
    leased.signal_client(shell, signal.SIGTERM)
    leased.released(container)


@pytest.mark.slow
def test_a_container_that_cannot_be_made_leaves_nothing(leased: Leased) -> None:
    """As one whose name is taken: the wrapper gives its guest back, and the shell in the lease goes on."""
    call = words(leased, "--name=web", verb="create")
    done = within(leased, '"$@" && ! "$@" && echo refused', *call, "true")
    assert done.stdout.split()[-1] == "refused", done.stderr
    lease = leased.container("web").lease
    assert [one["kind"] for one in events(leased) if one["lease"] == lease].count("guest_ended") == 1
    leased.host.until(lambda: not leased.agent.leftovers())


@pytest.mark.slow
def test_it_is_held_together_with_the_leases_programs(fake_leased: Leased) -> None:
    """One usage file is mounted: what the container takes is missing to the shell, by the same limits."""
    script = 'env | grep ^GPULEASE_HOOK= && "$@"'
    image = fake_leased.image(fake_leased.host, "glibc")
    call = ("gpulease", fake_leased.host.kind.client, "run", "--rm", "--network=none", image)
    done = within(fake_leased, script, *call, "cat", "/etc/ld.so.preload", "/proc/self/mountinfo")
    assert done.returncode == 0, done.stderr
    mounted = [line.split() for line in done.stdout.splitlines() if "/run/gpulease/usage" in line]
    hook = Path(done.stdout.splitlines()[0].partition("=")[2])
    assert len(mounted) == 1 and mounted[0][3].endswith(f"-{hook.parent.name}")


def bound_ids(leased: Leased) -> list[str]:
    return [one["data"]["container"] for one in events(leased) if one["kind"] == "bound"]


def ended_ids(leased: Leased) -> list[str]:
    live = {one["id"] for one in leased.agent.leases()}
    told = [one for one in events(leased) if one["kind"] == "guest_ended" and one["lease"] in live]
    return [one["data"]["container"] for one in told]


def events(leased: Leased) -> list[dict[str, Any]]:
    """All events so far."""
    found: list[dict[str, Any]] = []
    after = 0
    while (page := leased.agent.call("GET", f"/v1/events?after={after}&limit=500"))["events"]:
        after = page["next"]
        found += page["events"]
    return found
