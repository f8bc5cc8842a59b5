"""Ways out of a lease on a real dmem controller under systemd: each starts inside it, as its holder."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.rig import tracer, ways
from tests.rig.ways import USER, Ways, as_user, bus, user_cgroup, within
from tests.rig.wired import CGROUPS, GIB, Wired, command, limit, path_of

pytestmark = pytest.mark.rig

MIB = 1 << 20
NODE = 3  # the descriptor by which a holder has its render node


@pytest.fixture(scope="module", autouse=True)
def user() -> Iterator[None]:
    """The user has a manager, logged in or not."""
    command("loginctl", "enable-linger", USER)
    yield
    command("loginctl", "disable-linger", USER)


@dataclass
class Held:
    """A lease of one GPU, and who is in it."""

    path: Path
    region: str
    size: int
    gpu: Any
    holder: Any

    def charged(self) -> int:
        table = dict(line.split() for line in (self.path / "dmem.current").read_text().splitlines())
        return int(table[self.region])


@pytest.fixture
def take(rig, agent: Wired) -> Iterator[Callable[[], Held]]:
    """Grants a lease with a process of the user in it; it ends with the test."""
    leases = []

    def taken() -> Held:
        lease = agent.grant(GIB)
        leases.append(lease)
        ((region, size),) = agent.regions(lease).items()
        gpu = next(one for one in rig.gpus if one.region == region)
        return Held(path_of(lease), region, size, gpu, rig.holder(gpu, path_of(lease), user=USER))

    yield taken
    for lease in leases:
        agent.release(lease)


@pytest.fixture
def lease(take: Callable[[], Held]) -> Held:
    """One lease."""
    return take()


@pytest.fixture
def attempts(lease: Held, tmp_path: Path, eventually) -> Ways:
    """Runs ways out of the lease, for its GPU."""
    eventually(bus().exists)
    return Ways(tmp_path, lease.gpu.node, eventually)


SSH = "ssh -i ~/.ssh/rig -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
KEY = (
    "mkdir -pm 700 ~/.ssh; yes | ssh-keygen -qt ed25519 -N '' -f ~/.ssh/rig; "
    "cp ~/.ssh/rig.pub ~/.ssh/authorized_keys"
)
# Name: what root does before, the user's way from inside the lease, what root does after, where it leads.
WAYS = {
    "scope": ("", "systemd-run -q --user --scope SCRIPT", "", "/user.slice/"),
    "service": ("", "systemd-run -q --user SCRIPT", "", "/user.slice/"),
    "at": ("systemctl start atd", "echo SCRIPT | at now", "", "/system.slice/atd.service"),
    "cron": (
        "",
        "echo @reboot SCRIPT | crontab -",
        "rm -f /run/crond.reboot; systemctl restart cron",
        "/system.slice/cron.service",
    ),
    "ssh": (
        f"systemctl start ssh; su {USER} -c {shlex.quote(KEY)}",
        f"HOME=~{USER}; {SSH} {USER}@127.0.0.1 SCRIPT",
        "",
        "/user.slice/",
    ),
}


@pytest.mark.way_out("systemd-run --user --scope", tier="kernel", outcome="refused: its cgroup gets nothing")
@pytest.mark.way_out("systemd-run --user", tier="kernel", outcome="refused: its cgroup gets nothing")
@pytest.mark.way_out("at", tier="kernel", outcome="refused: its cgroup gets nothing")
@pytest.mark.way_out("cron", tier="kernel", outcome="refused: its cgroup gets nothing")
@pytest.mark.way_out("ssh to the same node", tier="kernel", outcome="refused: its cgroup gets nothing")
@pytest.mark.parametrize("name", WAYS)
def test_another_daemon_starts_it_for_nothing(lease: Held, attempts: Ways, name: str) -> None:
    """Who has a daemon start a program outside gets no VRAM there, while the lease goes on."""
    before, way, after, where = WAYS[name]
    assert lease.holder.do("alloc 64M") == "ok"
    script = str(attempts.script(name))
    command("sh", "-c", before)
    told = command(*within(lease.path, *as_user("sh", "-c", way.replace("SCRIPT", script))))
    command("sh", "-c", after)
    said = attempts.said(name, told)
    assert said.cgroup.startswith(where)
    assert not said.got
    assert lease.holder.do("alloc 64M") == "ok"


@pytest.mark.way_out("a new login", tier="kernel", outcome="refused: its cgroup gets nothing")
@pytest.mark.way_out(
    "a system service of the user", tier="kernel", outcome="refused: its cgroup gets nothing"
)
def test_what_root_starts_for_the_user_gets_nothing(lease: Held, attempts: Ways) -> None:
    """Neither a login session nor a service of PID 1 has VRAM."""
    login = attempts.run("login", *within(lease.path, "su", "-", USER, "-c", "SCRIPT"))
    service = attempts.run("system", "systemd-run", "-q", f"--uid={USER}", "SCRIPT")
    assert login.cgroup.startswith("/user.slice/")
    assert service.cgroup.startswith("/system.slice/")
    assert not login.got and not service.got


@pytest.mark.way_out(
    "moving oneself to another cgroup: the user manager's, the root, another lease's",
    tier="kernel",
    outcome="not allowed; it stays in its lease",
)
def test_a_user_does_not_move_out(lease: Held, take: Callable[[], Held], attempts: Ways) -> None:
    """The kernel asks for rights on the common ancestor, which no user has."""
    own = user_cgroup() / "rig"
    command(*as_user("mkdir", "-p", str(own)))
    assert own.owner() == USER
    targets = (own, CGROUPS, CGROUPS / "user.slice", take().path)
    moves = "; ".join(f"echo $$ >{target}/cgroup.procs" for target in targets)
    said = attempts.run("move", *within(lease.path, *as_user("sh", "-c", f"{moves}; SCRIPT")))
    assert CGROUPS / said.cgroup[1:] == lease.path
    assert said.got


@pytest.mark.way_out(
    "writing the lease's own limits, as oneself and as root of a user namespace",
    tier="kernel",
    outcome="not allowed",
)
@pytest.mark.parametrize("namespace", [False, True], ids=["plain", "user namespace"])
def test_a_user_does_not_change_the_limits(lease: Held, namespace: bool) -> None:
    """Neither its files nor the same files in a mount of one's own can be written, nor cgroups be made."""
    place = "/mnt" if namespace else str(lease.path)
    script = f"""
    cat {place}/dmem.max
    echo '{lease.region} max' >{place}/dmem.max
    echo -dmem >{place}/cgroup.subtree_control
    mkdir {place}/inner || chmod 777 {place} {place}/dmem.max || rmdir {place}
    """
    words = ["sh", "-c", script]
    if namespace:
        words = ["sh", "-c", f"mount -t cgroup2 none /mnt && {script.strip()}"]
        words = ["unshare", "--user", "--map-root-user", "--mount", "--cgroup", *words]
    told = command(*within(lease.path, *as_user(*words)))
    assert f"{lease.region} {lease.size}" in told
    assert limit(lease.path, lease.region) == str(lease.size)
    assert not (lease.path / "inner").exists()
    assert lease.holder.do(f"alloc {lease.size}") == "ok"
    assert lease.holder.do("alloc 4096") == "ENOMEM"


@pytest.mark.way_out(
    "a larger limit of one's own on a cgroup inside the lease; a threaded one",
    tier="kernel",
    outcome="can be set where the subtree was delegated; refused over the lease's limit all the same",
)
def test_cgroups_of_ones_own_inside_count_for_the_lease(rig, lease: Held) -> None:
    """In a delegated subtree a user sets what limit they like, and what is above binds."""
    lease.holder.end()
    inner = lease.path / "inner"
    inner.mkdir()
    rig.dmem.enable(f"/{inner.relative_to(CGROUPS)}")
    for path in (inner, *(inner / name for name in ("cgroup.procs", "cgroup.subtree_control", "dmem.max"))):
        command("chown", USER, str(path))
    more = f"echo '{lease.region} {2 * lease.size}' >{inner}/dmem.max"
    threads = f"mkdir {inner}/threads && echo threaded >{inner}/threads/cgroup.type"
    assert command(*as_user("sh", "-c", f"{more}; {threads}")) == ""
    assert limit(inner, lease.region) == str(2 * lease.size)
    for directory in (inner, inner / "threads"):
        holder = rig.holder(lease.gpu, inner, user=USER)
        if directory != inner:
            command(*within(inner, *as_user("sh", "-c", f"echo {holder.pid} >{directory}/cgroup.procs")))
            assert directory.name in Path(f"/proc/{holder.pid}/cgroup").read_text()
        assert holder.do(f"alloc {lease.size}") == "ok"
        assert holder.do("alloc 4096") == "ENOMEM"
        assert lease.charged() == lease.size
        holder.end()


@pytest.mark.way_out(
    "ptrace of a process outside, from within a lease",
    tier="kernel",
    outcome="refused: charged where the traced process is, which gets nothing",
)
@pytest.mark.way_out(
    "ptrace of one's own process in a lease, from outside or from another lease",
    tier="kernel",
    outcome="it allocates, and its own lease is charged, up to that one's limit",
)
def test_a_traced_process_is_charged_where_it_is(rig, lease: Held, take: Callable[[], Held]) -> None:
    """Who tells a process to allocate does not matter; the process's own cgroup is charged and binds."""
    other = take()
    outside = rig.holder(lease.gpu, CGROUPS / "user.slice/rig-callers", user=USER)

    def trace(tracer_in: Path, pid: int, text: str) -> str:
        words = (sys.executable, "-I", tracer.__file__, str(pid), str(NODE), text)
        return command(*within(tracer_in, *as_user(*words)))

    assert trace(lease.path, outside.pid, "alloc 4096") == "ENOMEM"
    callers = CGROUPS / "user.slice/rig-callers"
    assert trace(callers, lease.holder.pid, "alloc 64M") == "ok"
    assert trace(other.path, lease.holder.pid, f"alloc {lease.size - 64 * MIB}") == "ok"
    assert (lease.charged(), other.charged()) == (lease.size, 0)
    assert trace(other.path, lease.holder.pid, "alloc 4096") == "ENOMEM"
    # And the traced one goes on as before.
    assert lease.holder.do("free all") == "ok"
    assert lease.charged() == 0


@pytest.mark.way_out(
    "a second lease of the same user",
    tier="kernel",
    outcome="each has its own limit: together what was granted, no more",
)
def test_two_leases_of_a_user_are_two_limits(take: Callable[[], Held]) -> None:
    """What one lease leaves unused is of no use to the other."""
    first, second = take(), take()
    assert second.holder.do(f"alloc {second.size + 4096}") == "ENOMEM"
    for one in (first, second):
        assert one.holder.do(f"alloc {one.size}") == "ok"
        assert one.holder.do("alloc 4096") == "ENOMEM"
    assert (first.charged(), second.charged()) == (first.size, second.size)


@pytest.mark.way_out("setsid, double fork", tier="kernel", outcome="stays in the lease, and counts for it")
def test_a_daemon_of_ones_own_stays_in_the_lease(lease: Held, attempts: Ways, eventually) -> None:
    """A process whose parents have gone shares the limit like any other."""
    daemon = within(lease.path, *as_user("setsid", "-f", "sh", "-c", "SCRIPT & exit"))
    said = attempts.run("daemon", *daemon)
    assert said.got
    assert CGROUPS / said.cgroup[1:] == lease.path
    eventually(lambda: lease.charged() == 0)
    assert lease.holder.do(f"alloc {lease.size - 32 * MIB}") == "ok"
    said = attempts.run("daemon", *daemon)
    assert not said.got
    assert CGROUPS / said.cgroup[1:] == lease.path


def test_an_attempt_that_is_not_stopped_is_seen(lease: Held, attempts: Ways) -> None:
    """The same program inside the lease gets its VRAM: a refusal elsewhere is the cgroup's doing."""
    said = attempts.run("inside", *within(lease.path, *as_user("SCRIPT")))
    assert said == ways.Said(f"/{lease.path.relative_to(CGROUPS)}", got=True)
