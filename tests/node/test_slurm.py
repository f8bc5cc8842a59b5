"""Jobs of Slurm at a real agent: its scripts' calls by hand, and a real second user under a slurmstepd."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from .conftest import RunningNode, as_user

pytestmark = [
    pytest.mark.root,
    pytest.mark.unattacked,  # what these leases hold is not the question
]

UID = 12345
# Root's daemon forks the task, which becomes the user; that forks its task-prolog, and runs its program then.
STEPD = """
import os, socket, sys
path, uid, body = sys.argv[1], int(sys.argv[2]), bytes.fromhex(sys.argv[3])
if os.fork() == 0:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    if os.fork() == 0:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            connection.sendall(body)
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        os.write(1, answer.partition(b"\\r\\n\\r\\n")[2])
        os._exit(0)
    os.wait()
    os.close(1)
    os.execv("/bin/sleep", ["sleep", "600"])
os.close(1)
os.wait()
"""


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=30)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))


def body(**told: Any) -> bytes:
    return b"".join(f"{name}={value}\0".encode() for name, value in told.items())


def uptime() -> str:
    return Path("/proc/uptime").read_text().split()[0]


@dataclass
class Slurm:
    """What Slurm's scripts do on one node, and its tasks."""

    node: RunningNode
    directory: Path
    tasks: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def body(self, job: int = 42, gpus: str = "0", **more: Any) -> bytes:
        told = {"SLURM_JOB_ID": job, "SLURM_JOB_UID": UID, "SLURM_JOB_GID": UID, "SLURM_JOB_GPUS": gpus}
        return body(**told, **more, GPULEASE_AT=uptime())

    def call(self, script: str, **told: Any) -> list[str]:
        """One call of the prolog or the epilog; the lines of the answer."""
        connection = UnixConnection(self.node.socket)
        headers = {"Content-Type": "application/octet-stream"}
        connection.request("POST", f"/v1/slurm/{script}", self.body(**told), headers)
        answer = connection.getresponse()
        text = answer.read().decode("ascii")
        assert answer.status == 200, text
        return text.splitlines()

    def lease(self, job: int = 42) -> dict[str, Any]:
        """The newest lease of the job."""
        found = self.node.http("GET", f"/v1/leases?holder=slurm:{job}").body["leases"]
        return found[-1]

    def spool(self, script: str, **told: Any) -> None:
        """Leave a call that nobody answered."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        spool = self.directory / "spool"
        spool.mkdir(mode=0o700, exist_ok=True)
        (spool / f"{script}-{told.get('job', 42)}-{boot}-{uptime()}").write_bytes(self.body(**told))

    def task(self, uid: int = UID, **told: Any) -> list[str]:
        """Start a task of *uid*; what its task-prolog is answered. Its program then runs on."""
        program = self.node.client / "slurmstepd"
        if not program.exists():
            shutil.copy(os.path.realpath("/usr/bin/python3"), program)
        content = body(**told)
        head = (
            "POST /v1/slurm/task HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Content-Type: application/octet-stream\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        words = [program, "-c", STEPD, str(self.node.socket), str(uid), (head.encode() + content).hex()]
        daemon = subprocess.Popen(
            words, env={"PYTHONHOME": "/usr"}, cwd="/", stdout=subprocess.PIPE, start_new_session=True
        )
        self.tasks.append(daemon)
        assert daemon.stdout is not None
        with daemon.stdout as answer:
            return answer.read().decode("ascii").splitlines()

    def end(self) -> None:
        for daemon in self.tasks:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(daemon.pid, signal.SIGKILL)
            daemon.wait()


@pytest.fixture
def slurm(start_agent: Callable[..., RunningNode], tmp_path: Path) -> Iterator[Slurm]:
    """A node whose first two GPUs are Slurm's, of eight shards each."""
    tmp_path.chmod(0o755)
    (tmp_path / "gres.conf").write_text("Name=gpu File=/dev/dri/renderD[128,136]\nName=shard Count=16\n")
    settings = f'[slurm]\ngres_conf = "{tmp_path}/gres.conf"\nspool = "{tmp_path}/spool"\n'
    settings += 'request_from = "comment"\n[release]\ngrace_seconds = 0\n'
    made = Slurm(start_agent("mi300x-spx", settings), tmp_path)
    yield made
    made.end()


def test_a_job_lives_from_prolog_to_epilog(slurm):
    """A shard for the job's user, the same when asked again, gone with the epilog; again is success."""
    granted = slurm.call("prolog")
    assert granted == slurm.call("prolog")
    lease = slurm.lease()
    assert granted[:2] == ["granted", f"lease {lease['id']}"]
    assert lease["holder"] == {"kind": "slurm", "id": "42", "uid": UID}
    assert lease["anchor"]["kind"] == "external"
    (one,) = lease["slices"]
    device = slurm.node.http("GET", f"/v1/devices/{one['device']}").body
    assert device["render_node"] == "renderD128"
    assert one["cu_count"] <= device["cus"] // 8
    assert slurm.call("epilog") == ["released", f"lease {lease['id']}"]
    assert slurm.call("epilog")[0] == "none"
    assert slurm.node.free(one["device"])["cus"] == device["cus"]


def test_a_task_runs_in_its_jobs_lease(slurm):
    """The task of the job's own user is moved before its program starts; nobody else's is."""
    slurm.call("prolog")
    lease = slurm.lease()
    assert slurm.task(UID + 1, SLURM_JOB_ID=42) == ["none"]
    lines = slurm.task(SLURM_JOB_ID=42)
    assert f"export GPULEASE_ID={lease['id']}" in lines
    procs = Path(f"/proc/{slurm.tasks[-1].pid}/task/{slurm.tasks[-1].pid}/children").read_text().split()
    (program,) = procs
    assert f"0::{lease['cgroup']}\n" in Path(f"/proc/{program}/cgroup").read_text()
    assert slurm.call("epilog")[0] == "released"
    assert slurm.tasks[-1].wait() == 0


def test_a_jobs_words_give_no_more_than_its_shards(slurm):
    """Threats 2 and 3: what job_submit.lua writes counts; a forged or hostile text is one shard, untold."""
    hostile = "*\n$(touch /tmp/x)\n\x1b[2J;gpulease:shards=8,"
    asked = {41: "gpulease:shards=2", 42: hostile, 43: "gpulease:shards=9"}
    answers = {job: slurm.call("prolog", job=job, SLURM_JOB_COMMENT=text) for job, text in asked.items()}
    assert answers[43] == ["refused", "job 43 asks for 9 shards of a GPU that has 8"]
    (two,), (one,) = slurm.lease(41)["slices"], slurm.lease(42)["slices"]
    assert two["vram_bytes"] // one["vram_bytes"] == 2
    assert "touch" not in str(answers) + str(slurm.lease(42))


def test_a_job_outlives_the_agent(slurm):
    """An agent that is killed and started again has the job's lease, and lets its tasks in."""
    slurm.call("prolog")
    lease = slurm.lease()
    slurm.node.kill()
    slurm.node.start()
    assert slurm.lease() == lease
    assert f"export GPULEASE_ID={lease['id']}" in slurm.task(SLURM_JOB_ID=42)
    assert slurm.call("epilog")[0] == "released"


def test_what_an_agent_missed_is_made_up_for(slurm):
    """Dead from before a job's epilog until after it: the record ends the job before anything is granted."""
    slurm.call("prolog", SLURM_JOB_COMMENT="gpulease:gpus")
    slurm.node.kill()
    slurm.spool("epilog")
    slurm.node.start()
    assert slurm.call("prolog", job=43, SLURM_JOB_COMMENT="gpulease:gpus")[0] == "granted"
    assert slurm.lease(42)["state"] == "released"
    assert not list((slurm.directory / "spool").iterdir())


def test_only_root_speaks_for_jobs(slurm):
    """Threat 10: a user gets no lease in a job's name and ends none, by these calls or by others."""
    slurm.call("prolog")
    target = "http://localhost/v1/slurm"
    for script in ("prolog", "epilog"):
        command = ["curl", "-q", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--unix-socket"]
        command += [str(slurm.node.socket), "-H", "Content-Type: application/octet-stream"]
        command += ["--data-binary", "SLURM_JOB_ID=42", f"{target}/{script}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, **as_user(UID + 1))
        assert done.stdout == "403", done
    assert slurm.node.gpulease("release", str(slurm.lease()["id"]), user=UID + 1).returncode == 4
    assert slurm.lease()["state"] == "active"
