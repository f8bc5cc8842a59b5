"""Shared memory that commands leave behind: a run takes its own along, and nothing of anybody else's."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.adapters.ipc import SHM, IpcSpace
from nodeagent.domain.ipc import Found, Kind

pytestmark = [pytest.mark.root, pytest.mark.cgroup2]

# Of this run alone: another one's processes would be sessions of theirs.
USER, NEIGHBOUR = 550_000_000 + os.getpid(), 560_000_000 + os.getpid()
RUN = ("run", "--cu", "25%", "--vram", "1G", "--")
LEAVE = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
assert min(libc.shmget(0, 4096, 0o1600), libc.msgget(0, 0o1600)) >= 0
for name in sys.argv[1:]:
    os.close(os.open(f"/dev/shm/{name}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
"""


@pytest.fixture
def name() -> str:
    return f"nodeagent-test-{secrets.token_hex(6)}"


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Whatever objects of the two users a test leaves are removed."""
    yield
    for one in (*left(USER), *left(NEIGHBOUR)):
        if one.kind is Kind.FILE:
            (SHM / one.name).unlink()
        else:
            IpcSpace().remove(one)


def left(uid: int) -> tuple[Found, ...]:
    return IpcSpace().find(uid).found


def kinds(uid: int) -> set[Kind]:
    return {one.kind for one in left(uid)}


def leaving(*names: str) -> tuple[str, ...]:
    return "/usr/bin/python3", "-c", LEAVE, *names


def leave_outside(uid: int, *names: str) -> None:
    subprocess.run(leaving(*names), user=uid, group=uid, extra_groups=[], check=True)


def last_lease(node) -> int:
    return max(lease["id"] for lease in node.taken())


def test_what_a_run_leaves_goes_with_it(node, name):
    """Segment, queue and file of the command are gone when `gpulease run` returns; a neighbour's stay."""
    leave_outside(NEIGHBOUR, f"{name}-neighbour")
    done = node.gpulease(*RUN, *leaving(name), user=USER)
    assert done.returncode == 0, done.stderr
    assert node.until(lambda: kinds(USER) == set())
    assert kinds(NEIGHBOUR) == {Kind.SEGMENT, Kind.QUEUE, Kind.FILE}
    told = node.http("GET", f"/v1/leases/{last_lease(node)}/ipc").body
    assert told["ended"] and {one["name"] for one in told["objects"] if one["goes"]} >= {name}


def test_what_the_user_had_before_stays(node, name):
    """A run takes nothing that was there when it began."""
    leave_outside(USER, name)
    before = left(USER)
    assert node.gpulease(*RUN, "true", user=USER).returncode == 0
    assert left(USER) == before


def test_a_dry_run_shows_what_goes_and_why_the_rest_stays(node, name):
    """`nodeagent ipc` says of each object of the holder's uid what becomes of it, and touches nothing."""
    leave_outside(USER, f"{name}-before")
    child = node.background(*RUN, "sh", "-c", 'exec "$@"; ', "sh", *leaving(name), user=USER)
    assert child.wait(timeout=60) == 0
    holding = node.background(
        *RUN, "/usr/bin/python3", "-c", f"{LEAVE}\nprint('up', flush=True); input()", f"{name}-now", user=USER
    )
    assert holding.stdout.readline() == "up\n"
    lease = max(one["id"] for one in node.live())
    shown = node.python("-m", "nodeagent.cli.main", "ipc", str(lease))
    assert shown.returncode == 0, shown.stderr
    lines = {line.split()[2]: line for line in shown.stdout.splitlines()}
    assert lines[f"{name}-before"].startswith("stays posix-shm") and "before" in lines[f"{name}-before"]
    assert lines[f"{name}-now"].startswith("goes posix-shm")
    assert (SHM / f"{name}-now").exists()
    holding.communicate("\n", timeout=60)
    assert node.until(lambda: not (SHM / f"{name}-now").exists())


def test_links_that_look_like_shared_memory_lead_nowhere(node, name, tmp_path: Path):
    """A symbolic link to root's file, a file of two names, a mutex of the node: all stay, root's file too."""
    target = tmp_path / "roots"
    target.write_text("kept")
    script = f"""
import os
os.symlink({str(target)!r}, "/dev/shm/{name}-link")
os.close(os.open("/dev/shm/{name}-one", os.O_CREAT | os.O_WRONLY, 0o600))
os.link("/dev/shm/{name}-one", "/dev/shm/{name}-two")
os.close(os.open("/dev/shm/rocm_smi_{name}", os.O_CREAT | os.O_WRONLY, 0o777))
"""
    assert node.gpulease(*RUN, "/usr/bin/python3", "-c", script, user=USER).returncode == 0
    node.until(lambda: not node.live())
    stayed = {f"{name}-link", f"{name}-one", f"{name}-two", f"rocm_smi_{name}"}
    assert {one.name for one in left(USER)} == stayed
    assert target.read_text() == "kept"


def test_what_somebody_still_uses_stays(node, name):
    """A process of another user, outside, has the file open: it stays, and the event names the process."""
    script = f"{LEAVE}\nos.chmod('/dev/shm/{name}', 0o644)\nprint('up', flush=True); input()"
    child = node.background(*RUN, "/usr/bin/python3", "-c", script, name, user=USER)
    assert child.stdout.readline() == "up\n"
    with (SHM / name).open("rb"):
        child.communicate("\n", timeout=60)
        lease = last_lease(node)
        node.until(lambda: node.lease(lease)["state"] == "released")
        assert (SHM / name).exists()
    events = node.http("GET", "/v1/events?limit=500").body["events"]
    (told,) = (one["reason"] for one in events if (one["kind"], one["lease"]) == ("ipc_left", lease))
    assert name in told and str(os.getpid()) in told
