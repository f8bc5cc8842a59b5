"""Ways out of a lease, on a real dmem controller and systemd: outside, nothing is to be had."""

from __future__ import annotations

import pwd
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.wired import CGROUPS, GIB, Wired, command, limit, open_again, path_of

pytestmark = pytest.mark.rig
READY = "dmem.max holds each lease, and all else is closed"
# What a way out runs: whether 64 MiB more of the GPU are to be had, and from which cgroup.
ATTEMPT = """\
#!/bin/sh
exec 3<>{node}
{{ grep ^0:: /proc/self/cgroup; printf 'alloc 64M' >&3 && echo GOT || echo REFUSED; }} >{said}.new 2>&1
mv {said}.new {said}
"""


@pytest.fixture
def wired(rig, tmp_path: Path) -> Iterator[Wired]:
    """An agent that has closed every region; what it closed is open after the test."""
    made = Wired(tmp_path)
    deadline = time.monotonic() + 60
    while made.tier().why != READY:
        assert time.monotonic() < deadline, made.tier().why
        time.sleep(0.2)
    yield made
    made.stop()
    open_again(tmp_path)
    assert " 0" not in (CGROUPS / "user.slice/dmem.max").read_text()


@pytest.fixture
def attempt(rig, eventually):
    """Run a way out given the script that allocates; what came of it."""
    directory = Path("/tmp/rig-ways")
    directory.mkdir(exist_ok=True)
    directory.chmod(0o777)
    rig.gpus[0].node.chmod(0o666)

    def run(name: str, *way: str) -> str:
        script, said = directory / f"{name}.sh", directory / f"{name}.said"
        said.unlink(missing_ok=True)
        script.write_text(ATTEMPT.format(node=rig.gpus[0].node, said=said))
        script.chmod(0o755)
        told = command(*(word.replace("SCRIPT", str(script)) for word in way))
        try:
            eventually(said.exists)
        except AssertionError:
            pytest.fail(f"{name} never ran: {told}")
        return said.read_text()

    return run


def as_alice(*words: str) -> tuple[str, ...]:
    uid = pwd.getpwnam("alice").pw_uid
    runtime = f"/run/user/{uid}"
    bus = (f"XDG_RUNTIME_DIR={runtime}", f"DBUS_SESSION_BUS_ADDRESS=unix:path={runtime}/bus")
    return ("setpriv", "--reuid=alice", "--regid=alice", "--init-groups", "env", *bus, *words)


@pytest.mark.way_out(
    "systemd-run --user, with and without --scope; a service, a login and an at job of the user",
    tier="kernel",
    outcome="refused: they run in cgroups that get nothing",
)
def test_no_way_out_of_a_lease_finds_vram(rig, wired: Wired, attempt, eventually) -> None:
    """A user's own scope, service, login, at and cron jobs, and a move by PID 1 all end in closed cgroups."""
    uid = pwd.getpwnam("alice").pw_uid
    command("loginctl", "enable-linger", "alice")
    eventually(Path(f"/run/user/{uid}/bus").exists)
    lease = wired.grant(GIB)
    ((region, _),) = wired.regions(lease).items()
    gpu = next(gpu for gpu in rig.gpus if gpu.region == region)
    inside = rig.holder(gpu, path_of(lease))
    assert inside.do("alloc 64M") == "ok"
    found = {
        "scope": attempt("scope", *as_alice("systemd-run", "-q", "--user", "--scope", "SCRIPT")),
        "service": attempt("service", *as_alice("systemd-run", "-q", "--user", "SCRIPT")),
        "system": attempt("system", "systemd-run", "-q", "--uid=alice", "SCRIPT"),
        "login": attempt("login", "su", "-", "alice", "-c", "SCRIPT"),
    }
    command("systemctl", "start", "atd")
    found["at"] = attempt("at", *as_alice("sh", "-c", "echo SCRIPT | at now"))
    assert {name: "REFUSED" in said for name, said in found.items()} == dict.fromkeys(found, True), found
    assert inside.do("alloc 64M") == "ok"


@pytest.mark.way_out(
    "AttachProcessesToUnit of PID 1",
    tier="kernel",
    outcome="moved, and refused there",
)
def test_who_has_pid_1_move_it_out_gets_nothing(rig, wired: Wired, attempt, eventually) -> None:
    """systemd moves a user's process from the lease into the user's own unit, where all is closed."""
    uid = pwd.getpwnam("alice").pw_uid
    command("loginctl", "enable-linger", "alice")
    unit = CGROUPS / f"user.slice/user-{uid}.slice/user@{uid}.service"
    eventually(Path(f"/run/user/{uid}/bus").exists)
    command(*as_alice("mkdir", str(unit / "rig")))
    lease = wired.grant(GIB)
    mine = subprocess.Popen(as_alice("sh", "-c", "read _ && /tmp/rig-ways/moved.sh"), stdin=subprocess.PIPE)
    (path_of(lease) / "cgroup.procs").write_text(str(mine.pid))
    told = command(
        *as_alice("busctl", "call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1"),
        *("org.freedesktop.systemd1.Manager", "AttachProcessesToUnit", "ssau"),
        *(f"user@{uid}.service", "/rig", "1", str(mine.pid)),
    )
    assert "user@" in Path(f"/proc/{mine.pid}/cgroup").read_text(), told
    assert mine.stdin
    # What the moved shell then runs is written before it may read on.
    said = attempt("moved", "sh", "-c", f"echo > /proc/{mine.pid}/fd/0")
    mine.communicate()
    assert "REFUSED" in said
    assert "rig" in said


@pytest.mark.way_out(
    "moving to another cgroup",
    tier="kernel",
    outcome="refused there; what it had stays charged to its lease",
)
def test_who_moves_out_gets_no_more(rig, wired: Wired, eventually) -> None:
    """What a process had stays charged to its lease; outside it gets nothing."""
    lease = wired.grant(GIB)
    ((region, size),) = wired.regions(lease).items()
    gpu = next(gpu for gpu in rig.gpus if gpu.region == region)
    mover = rig.holder(gpu, path_of(lease))
    assert mover.do("alloc 64M") == "ok"
    outside = CGROUPS / "user.slice/rig-outside"
    outside.mkdir()
    (outside / "cgroup.procs").write_text(str(mover.pid))
    assert mover.do("alloc 4096") == "ENOMEM"
    (path_of(lease) / "cgroup.procs").write_text(str(mover.pid))
    assert mover.do(f"alloc {size - (64 << 20)}") == "ok"
    assert mover.do("alloc 4096") == "ENOMEM"
    outside.rmdir()


@pytest.mark.way_out(
    "root raises a limit outside, or a new top-level cgroup appears",
    tier="kernel",
    outcome="closed again at the next look, and told; until then it can allocate",
)
def test_what_is_opened_or_new_is_closed_again(wired: Wired, rig, eventually) -> None:
    """At the next look, and told."""
    region = rig.gpus[0].region
    (CGROUPS / "user.slice/dmem.max").write_text(f"{region} max\n")
    eventually(lambda: limit(CGROUPS / "user.slice", region) == "0")
    eventually(lambda: wired.events("closure_restored"))
    fresh = CGROUPS / "rig-new.slice"
    fresh.mkdir()
    try:
        eventually(lambda: limit(fresh, region) == "0")
    finally:
        fresh.rmdir()


def test_a_service_beside_its_lease_shares_what_it_holds(wired: Wired, rig, eventually) -> None:
    """The service is held at its lease's bytes and its siblings at nothing; after the release all are."""
    command("systemd-run", "-q", "--unit=rig-job", "sleep", "1000")
    job = CGROUPS / "system.slice/rig-job.service"
    pid = int((job / "cgroup.procs").read_text().split()[0])
    lease = wired.grant(GIB, pid=pid)
    ((region, size),) = wired.regions(lease).items()
    assert lease.guarantee.memory == "kernel"
    assert limit(job, region) == str(size)
    assert limit(CGROUPS / "system.slice", region) == "max"
    assert limit(CGROUPS / "system.slice/dbus.service", region) == "0"
    gpu = next(gpu for gpu in rig.gpus if gpu.region == region)
    beside = rig.holder(gpu, job)
    assert beside.do(f"alloc {size}") == "ok"
    assert beside.do("alloc 4096") == "ENOMEM"
    beside.end()
    wired.release(lease)
    eventually(lambda: limit(CGROUPS / "system.slice", region) == "0")
    command("systemctl", "stop", "rig-job")
