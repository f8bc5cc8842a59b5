"""`gpulease run --private-ipc`: shared memory of a command's own, seen by nobody and gone with its lease."""

from __future__ import annotations

import json
import os
import secrets
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.root, pytest.mark.cgroup2]

# Of this run alone: another one's processes would be sessions of theirs.
USER = 570_000_000 + os.getpid()
SLICE = ("run", "--cu", "25%", "--vram", "1G")
PRIVATE = (*SLICE, "--private-ipc", "--")
# Makes, or looks for, a file, a segment and a queue by the same name: one true or false for each.
OBJECTS = """
import ctypes, json, os, stat, sys
act, name = sys.argv[1:3]
key = int(name[-6:], 16)
libc = ctypes.CDLL(None, use_errno=True)
make = act == "make"
def file():
    path = f"/dev/shm/{name}"
    if make:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    return os.path.exists(path)
found = {
    "file": file(),
    "segment": libc.shmget(key, 4096 if make else 0, 0o3666 if make else 0) >= 0,
    "queue": libc.msgget(key, 0o3666 if make else 0) >= 0,
    "posix queue": libc.mq_open(f"/{name}".encode(), 0o302 if make else 0, 0o666, None) >= 0,
}
found["ipc"] = os.readlink("/proc/self/ns/ipc")
found["shm"] = os.stat("/dev/shm").st_dev
print(json.dumps(found), flush=True)
"""
WAIT = "\nsys.stdin.readline()\n"
KINDS = ("file", "segment", "queue", "posix queue")


@pytest.fixture
def name() -> Iterator[str]:
    """Of the objects; what is left of them outside is removed."""
    own = f"nodeagent-test-{secrets.token_hex(6)}"
    yield own
    with suppress(FileNotFoundError):
        Path("/dev/shm", own).unlink()
    key = str(int(own[-6:], 16))
    subprocess.run(["ipcrm", "-M", key, "-Q", key], stderr=subprocess.DEVNULL, check=False)


@pytest.fixture
def needs_private_ipc(node) -> None:
    tiers = {one["name"]: one for one in node.http("GET", "/v1/node").body["tiers"]}
    if not tiers["private_ipc"]["present"]:
        pytest.skip(tiers["private_ipc"]["why"])


Look = Callable[..., dict[str, Any]]


@pytest.fixture
def look(node, needs_private_ipc, name: str) -> Look:
    """What a run of the user's finds of the objects, or makes."""

    def look(*run: str, act: str = "look") -> dict[str, Any]:
        done = node.gpulease(*run, "/usr/bin/python3", "-c", OBJECTS, act, name, user=USER, cwd="/")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return look


@pytest.fixture
def made(node, needs_private_ipc, name: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    """A private run that has made the objects and waits for a line, and what it said."""
    child = node.background(*PRIVATE, "/usr/bin/python3", "-c", OBJECTS + WAIT, "make", name, user=USER)
    said = json.loads(child.stdout.readline())
    assert [said[kind] for kind in KINDS] == [True] * 4
    return child, said


def outside(name: str) -> list[bool]:
    done = subprocess.run(
        ["/usr/bin/python3", "-c", OBJECTS, "look", name], capture_output=True, text=True, check=True
    )
    return [json.loads(done.stdout)[kind] for kind in KINDS]


def anywhere(space: str, device: int) -> list[int]:
    """The processes in an IPC namespace, or with its /dev/shm mounted."""
    mount = f" {os.major(device)}:{os.minor(device)} / /dev/shm "
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            lines = (process / "mountinfo").read_text().splitlines()
            mounted = any(mount in line and " tmpfs gpulease " in line for line in lines)
            if mounted or str((process / "ns/ipc").readlink()) == space:
                found.append(int(process.name))
    return found


def test_nobody_sees_what_is_in_there(node, made, look, name):
    """The node, a private run and an ordinary one of the same user find no file, segment or queue of it."""
    assert outside(name) == [False] * 4
    for run in (PRIVATE, (*SLICE, "--")):
        found = look(*run)
        assert [found[kind] for kind in KINDS] == [False] * 4
    made[0].communicate("\n", timeout=60)


def test_it_sees_nothing_of_the_nodes(node, look, name):
    """Nor is what others have in shared memory to be found in there."""
    own = node.background(*SLICE, "--", "/usr/bin/python3", "-c", OBJECTS + WAIT, "make", name, user=USER)
    assert own.stdout.readline()
    found = look(*PRIVATE)
    assert [found[kind] for kind in KINDS] == [False] * 4
    own.communicate("\n", timeout=60)
    subprocess.run(["/usr/bin/python3", "-c", UNLINK, name], check=True)


UNLINK = "import ctypes, sys; ctypes.CDLL(None).mq_unlink(f'/{sys.argv[1]}'.encode())"


def test_runs_share_it_unless_they_ask(node, look, name):
    """Without the option commands find each other's shared memory, as ranks of one MPI job must."""
    own = node.background(*SLICE, "--", "/usr/bin/python3", "-c", OBJECTS + WAIT, "make", name, user=USER)
    assert own.stdout.readline()
    found = look(*SLICE, "--")
    assert [found[kind] for kind in KINDS] == [True] * 4
    own.communicate("\n", timeout=60)
    subprocess.run(["/usr/bin/python3", "-c", UNLINK, name], check=True)


def test_all_of_it_ends_with_the_lease(node, made, name):
    """Though a process of the command's is left behind in there, the release ends namespace and mount."""
    child, said = made
    assert anywhere(said["ipc"], said["shm"])
    child.communicate("\n", timeout=60)
    left = node.background(*PRIVATE, "sh", "-c", STAY, user=USER)
    space, device = left.stdout.readline().split()
    assert left.wait(timeout=60) == 0
    node.until(lambda: not node.live())
    assert anywhere(said["ipc"], said["shm"]) == anywhere(space, int(device)) == []
    assert outside(name) == [False] * 4


STAY = "setsid sleep 600 >/dev/null 2>&1 <&1 & echo $(readlink /proc/self/ns/ipc) $(stat -c %d /dev/shm)"


def test_the_lease_says_so_and_lets_nothing_else_in(node, made):
    """The lease is stated private, its command launched; exec does not enter it, its IPC view says why."""
    (lease,) = (one for one in node.live() if one["state"] == "active")
    assert lease["guarantee"]["ipc"] == "private"
    events = node.http("GET", f"/v1/events?lease={lease['id']}").body["events"]
    assert [one["uid"] for one in events if one["kind"] == "launched"] == [USER]
    entering = node.gpulease("exec", str(lease["id"]), "--", "true", user=USER, cwd="/")
    assert (entering.returncode, "ipc=private" in entering.stderr) == (125, True)
    told = node.http("GET", f"/v1/leases/{lease['id']}/ipc").body
    assert (told["objects"], "of its own" in told["note"]) == ([], True)
    made[0].communicate("\n", timeout=60)


def test_it_looks_as_the_nodes_does(node, needs_private_ipc):
    """/dev/shm is root's, open to all, as large as the node's, for data only; the working directory stays."""
    script = "import os; s = os.stat('/dev/shm'); v = os.statvfs('/dev/shm')\n"
    script += "print(s.st_uid, s.st_mode, v.f_blocks * v.f_frsize, v.f_flag & 6, os.getcwd())"
    done = node.gpulease(*PRIVATE, "/usr/bin/python3", "-c", script, user=USER, cwd="/usr")
    own = os.statvfs("/dev/shm")
    assert done.stdout.split() == [
        *("0", str(stat.S_IFDIR | 0o1777), str(own.f_blocks * own.f_frsize)),
        *(str(os.ST_NOSUID | os.ST_NODEV), "/usr"),
    ]


@pytest.mark.unattacked("nothing ever runs in it")
def test_a_run_from_within_the_nodes_is_refused(node, needs_private_ipc):
    """A command that would start with the node's /dev/shm as its directory does not, and is told why."""
    done = node.gpulease(*PRIVATE, "true", user=USER, cwd="/dev/shm")
    assert (done.returncode, "/dev/shm" in done.stderr.splitlines()[-1]) == (125, True)
    assert node.live() == []
