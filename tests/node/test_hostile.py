"""A hostile local user against a running agent, by real processes of other uids."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeagent.adapters.cgroup_mount import find_mount
from nodeagent.config import Config, read
from nodeagent.domain.errors import InvalidField
from nodeagent.wiring import classifier

from .conftest import COMMAND_SECONDS

pytestmark = pytest.mark.root

MALLORY, ALICE = 4321, 4322
# What the hostile scripts share: calls that say all, raw bytes, and how to tell the test.
PRELUDE = """
import json, os, socket, subprocess, sys, time
from gpulease.transport import Transport
SOCKET = os.environ["GPULEASE_SOCKET"]
def call(method, target, body=None):
    data = None if body is None else json.dumps(body).encode()
    patience = float(os.environ.get("NODEAGENT_PATIENCE", "1"))
    answer = Transport(SOCKET, timeout=10 * patience).call(method, target, data)
    return answer.status, json.loads(answer.body or b"null")
def raw(data):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(SOCKET)
        connection.sendall(data)
        return connection.recv(4096).decode("latin-1")
def tell(*values):
    print(json.dumps(values))
"""
SOON = 2 * int(os.environ.get("NODEAGENT_PATIENCE", "1"))  # seconds, in which a lease can be attacked
TINY = {"slices": [{"cu_shared": True, "vram_bytes": 1 << 28}]}
# Root in a container, as far as the kernel tells: uid 0 in another pid namespace, or below another root.
CONTAINERS = (
    pytest.param(["unshare", "--pid", "--fork", "--kill-child"], id="pid namespace"),
    pytest.param(["unshare", "--user", "--map-root-user"], id="user namespace", marks=pytest.mark.userns),
)


def run_as(node, user: int | None, script: str, *, inside: list[str] | None = None) -> Any:
    """What *script* told, run by *user*, *inside* another command."""
    done = subprocess.run(
        [*(inside or []), "/usr/bin/python3", "-c", PRELUDE + script],
        env=node.environment(),
        text=True,
        capture_output=True,
        timeout=COMMAND_SECONDS,
        check=False,
        **({} if user is None else {"user": user, "group": user, "extra_groups": []}),
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def all_clear(node) -> bool:
    """Whether every slice is free; those in quarantine are looked at again."""
    devices = node.http("GET", "/v1/devices").body["devices"]
    unclear = [one["device"] for one in devices if one["free"]["vram_bytes"] < one["grantable_bytes"]]
    for device in unclear:
        node.http("POST", f"/v1/devices/{device}/clear", {})
    return not unclear


@pytest.fixture
def delegated() -> Iterator[Path]:
    """A cgroup subtree that belongs to the hostile user, outside of user sessions: a container's, say."""
    mount = find_mount()
    if mount is None or not os.access(mount, os.W_OK):
        pytest.skip("needs a writable cgroup2 mount")
    top = mount / f"nodeagent-test-{os.getpid()}"
    top.mkdir()
    for name in ("", "cgroup.procs", "cgroup.subtree_control"):
        os.chown(top / name, MALLORY, MALLORY)
    yield top
    (top / "cgroup.kill").write_text("1")
    for found, _, _ in os.walk(os.fsencode(top), topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(found)  # noqa: PTH106 -- names that are no text


@pytest.mark.parametrize("inside", CONTAINERS)
def test_a_containers_root_is_nobody(node, inside):
    """It administers nothing, holds nothing, and learns nothing of root's leases."""
    lease = node.http("POST", "/v1/leases", TINY).body["id"]
    key = node.device()["device"]
    script = f"""
tell(
    call("POST", "/v1/devices/{key}/drain", {{}})[0],
    call("POST", "/v1/leases/{lease}/attach")[0],
    call("DELETE", "/v1/leases/{lease}")[0],
    call("GET", "/v1/leases/{lease}")[1]["masked"],
    call("GET", "/v1/leases?user=0")[0],
    call("GET", "/v1/leases?holder=client:0")[1].get("leases"),
    call("GET", "/v1/events")[1].get("events"),
)
"""
    drain, attach, release, masked, by_user, by_holder, events = run_as(node, None, script, inside=inside)
    assert (drain, attach, release, masked, by_user) == (403, 403, 403, True, 403)
    assert by_holder is None and events == []
    assert node.lease(lease)["state"] == "active"


def test_nothing_is_held_for_a_process_that_is_not_named_by_its_owner(node):
    """A cgroup anchor takes no pid, and neither root's processes, threads nor the agent are adopted."""
    script = f"""
import threading
thread = threading.Thread(target=time.sleep, args=(5,), daemon=True)
thread.start()
tell(*[
    call("POST", "/v1/leases", {{"anchor": anchor}})[0]
    for anchor in (
        {{"kind": "cgroup", "pid": os.getpid()}},
        {{"kind": "process", "pid": {os.getpid()}}},
        {{"kind": "process", "pid": {node.process.pid if node.process else os.getpid()}}},
        {{"kind": "process", "pid": 2}},
        {{"kind": "process", "pid": thread.native_id}},
        {{"kind": "cgroup", "cgroup": "/user.slice"}},
        {{"kind": "external"}},
    )
])
"""
    statuses = run_as(node, MALLORY, script)
    assert all(status in (403, 422, 429) for status in statuses) and statuses[0] == 422
    assert not node.live()


@pytest.mark.parametrize("value", ["0000000000000005", "+5", "5, 5", "5\r\nContent-Length: 5", "9" * 40])
def test_no_length_makes_a_thread_wait(node, value):
    """A length that another reader would find another number in is refused before a thread has it."""
    head = f"POST /v1/leases HTTP/1.1\r\nHost: localhost\r\nContent-Length: {value}\r\n\r\n"
    assert run_as(node, MALLORY, f"tell(raw({head.encode()!r}).split()[1])") == ["400"]


@pytest.mark.unattacked("its leases are of processes that run sleep")
def test_stuck_releases_of_a_user_do_not_delay_another(node):
    """Twelve adopted processes that outlive their leases: another user's release is proved meanwhile."""
    script = f"""
pids = []
while len(pids) < 12:
    child = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    pids.append(child.pid)
    status, lease = call("POST", "/v1/leases", dict({TINY!r}, anchor={{"kind": "process", "pid": child.pid}}))
    assert status == 201, lease
    call("DELETE", "/v1/leases/%d" % lease["id"])
tell(*pids)
"""
    pids = run_as(node, MALLORY, script)
    try:
        told = run_as(
            node,
            ALICE,
            f"""
lease = call("POST", "/v1/leases", {TINY!r})[1]["id"]
tell(call("DELETE", "/v1/leases/%d?wait=5" % lease)[1]["state"])
""",
        )
        assert told == ["released"]
    finally:
        for pid in pids:
            os.kill(pid, 9)
    node.until(lambda: not node.live())
    node.until(lambda: all_clear(node))


@pytest.mark.cgroup2
@pytest.mark.parametrize("name", ["byte\\xff", "\\x1b[31mred"])
def test_a_cgroup_of_an_odd_name_stops_nobody(node, delegated, name):
    """From a cgroup whose name is no text nothing is granted, and the agent goes on for the others."""
    script = f"""
odd = {os.fspath(delegated)!r}.encode() + b"/{name}"
os.mkdir(odd)
if os.fork() == 0:
    open(odd + b"/cgroup.procs", "wb").write(b"%d" % os.getpid())
    os.setgroups([]); os.setgid({MALLORY}); os.setuid({MALLORY})
    tell(call("POST", "/v1/leases", {TINY!r})[0])
    os._exit(not sys.stdout.flush())
os.wait()
"""
    assert run_as(node, None, script) == [403]
    ended = node.http("POST", "/v1/leases", {**TINY, "ttl_seconds": SOON}).body["id"]
    node.until(lambda: node.lease(ended)["state"] == "released")


@pytest.mark.cgroup2
@pytest.mark.unattacked("the lease would end with the first process that leaves it")
def test_nobody_takes_a_leases_place_in_their_own_subtree(node, delegated):
    """Directories with the names of the next leases, made before the agent does, get no lease and no kill."""
    own = delegated / "own"
    own.mkdir()
    os.chown(own, MALLORY, MALLORY)
    os.chown(own / "cgroup.procs", MALLORY, MALLORY)
    probe = node.http("POST", "/v1/leases", TINY).body  # lives by time: nobody enters it
    stem, _, number = Path(probe["cgroup"]).name.removesuffix(".slice").rpartition("-")
    for ahead in range(1, 9):
        squatted = own / f"{stem}-{int(number) + ahead}.slice"
        squatted.mkdir()
        os.chown(squatted, MALLORY, MALLORY)
    bystander = subprocess.Popen(["sleep", "infinity"])
    try:
        (squatted / "cgroup.procs").write_text(str(bystander.pid))
        script = f"""
if os.fork() == 0:
    open({os.fspath(own / "cgroup.procs")!r}, "w").write(str(os.getpid()))
    os.setgroups([]); os.setgid({MALLORY}); os.setuid({MALLORY})
    tell(call("POST", "/v1/leases", {TINY!r})[0])
    os._exit(not sys.stdout.flush())
os.wait()
"""
        assert run_as(node, None, script) == [503]
        node.until(lambda: not [lease for lease in node.live() if lease["id"] > probe["id"]])
        assert bystander.poll() is None
        assert squatted.is_dir()
    finally:
        bystander.kill()
        bystander.wait()


def test_what_a_user_calls_itself_reaches_no_terminal_and_no_shell(node):
    """Newline, ESC, quotes and expansions are refused where they enter; so are bidirectional overrides."""
    texts = [
        "a\nexport LD_PRELOAD=x",
        "\x1b[31m",
        "it's",
        '"x"',
        "$(id)",
        "`id`",
        "\u202eabc",
        "a" * 65,
        "a\0",
    ]
    script = f"""
for text in {texts!r}:
    status, answer = call("POST", "/v1/leases", {{"holder": {{"kind": "client", "id": text}}}})
    assert status == 422 and text not in json.dumps(answer, ensure_ascii=False), (text, answer)
tell(len({texts!r}))
"""
    assert run_as(node, MALLORY, script) == [len(texts)]


def test_a_request_id_of_another_user_is_ones_own(node):
    """Two users with one request id get a lease each, and learn nothing of each other."""
    script = f"""
tell(*[call("POST", "/v1/leases", dict({TINY!r}, request_id="slurm:42")) for _ in range(2)])
"""
    first, again = run_as(node, MALLORY, script)
    other, _ = run_as(node, ALICE, script)
    assert (first[0], again[0], other[0]) == (201, 200, 201)
    assert first[1]["id"] == again[1]["id"] != other[1]["id"]
    assert str(MALLORY) not in json.dumps(other[1])


def test_connections_of_subordinate_uids_count_for_their_owner():
    """A user with sixty-five thousand uids has as many places as one with a single uid."""
    classify = classifier(Config(), owner_of=lambda uid: ALICE if uid == MALLORY else uid)
    left, right = socket.socketpair()
    with left, right:
        assert classify(left).reserved
    listener = socket.socket(socket.AF_UNIX)
    with listener:
        listener.bind(f"\0nodeagent-test-{os.getpid()}")
        listener.listen()
        code = f"import socket; s = socket.socket(1); s.connect('\\0nodeagent-test-{os.getpid()}'); s.recv(1)"
        command = ["/usr/bin/python3", "-c", code]
        peer = subprocess.Popen(command, user=MALLORY, group=MALLORY, extra_groups=[])
        connection, _ = listener.accept()
        with connection:
            assert (classify(connection).uid, classify(connection).reserved) == (ALICE, False)
        peer.wait()


@pytest.mark.parametrize("how", ["another user's", "everybody's"])
def test_a_state_directory_of_others_is_not_used(tmp_path, how):
    """Root would write there what a link could lead anywhere: the agent does not start."""
    state, aim = tmp_path / "state", tmp_path / "aim"
    state.mkdir()
    aim.mkdir()
    (state / "machine").symlink_to(aim)
    os.chown(state, *((MALLORY, MALLORY) if how == "another user's" else (0, 0)))
    state.chmod(0o700 if how == "another user's" else 0o777)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "nodeagent.cli.main", "serve", "--simulate", "vega10"),
            *("--socket", str(tmp_path / "s"), "--state-dir", str(state)),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0 and str(state) in done.stderr
    assert not list(aim.iterdir())


@pytest.mark.parametrize("how", ["another user's", "everybody's"])
def test_settings_that_others_may_write_are_not_read(tmp_path, how):
    """Neither a file that another user owns nor one that its group or everybody may write."""
    path = tmp_path / "nodeagent.toml"
    path.write_text('[server]\nadmin_group = "4321"\n')
    assert read(path)
    if how == "another user's":
        os.chown(path, MALLORY, MALLORY)
    else:
        path.chmod(0o666)
    with pytest.raises(InvalidField):
        read(path)


def test_what_the_agent_keeps_is_its_own(node):
    """The state directory and every file in it are closed to everybody else."""
    state = node.state_dir
    if state is None:
        pytest.skip("the agent was started by somebody else")
    node.http("POST", "/v1/leases", TINY)  # the first grant writes the ids' mark
    files = [path for path in (state, *state.iterdir()) if path.name != "machine"]
    assert {path.name for path in files} > {"ledger.sqlite3", "ids"}
    assert [path for path in files if path.stat().st_mode & 0o077] == []


def test_roots_command_shows_nothing_to_a_server_that_a_user_runs(node, tmp_path):
    """A socket that the environment names is not believed: the command sends nothing and says whose it is."""
    directory = node.socket.parent / "mallory"
    directory.mkdir()
    os.chown(directory, MALLORY, MALLORY)
    script = f"""
import threading
server = socket.socket(socket.AF_UNIX)
server.bind({os.fspath(directory / "s")!r})
server.listen()
print("[]", flush=True)
connection, _ = server.accept()
print(len(connection.recv(1)), flush=True)
"""
    command = ["/usr/bin/python3", "-c", PRELUDE + script]
    with subprocess.Popen(
        command, env=node.environment(), text=True, stdout=subprocess.PIPE, user=MALLORY, group=MALLORY
    ) as server:
        assert server.stdout is not None and server.stdout.readline()
        done = subprocess.run(
            [sys.executable, "-m", "gpulease", "status"],
            env={**node.environment(), "GPULEASE_SOCKET": str(directory / "s")},
            text=True,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 5 and str(MALLORY) in done.stderr
        assert server.stdout.readline() == "0\n"
