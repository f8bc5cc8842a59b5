"""What Slurm's scripts send, a gres.conf to send it about, and a slurmstepd with a task."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from service_builders import House, admin

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.peer import peer_of
from nodeagent.domain.lease import HolderKind, Lease
from nodeagent.domain.slurm import Verdict, Word
from nodeagent.service.orders import Caller

GPUS = (128, 129)  # render minors of vega10
NODE = f"testnode{secrets.token_hex(4)}"
# Root's daemon forks the task, which becomes the user, and the task what stands for its task-prolog.
STEPD = """
import os, socket, sys
task = os.fork()
if task == 0:
    if os.geteuid() == 0:
        os.setgroups([])
    os.setresgid(int(sys.argv[2]), int(sys.argv[2]), int(sys.argv[2]))
    os.setresuid(int(sys.argv[2]), int(sys.argv[2]), int(sys.argv[2]))
    if os.fork() == 0:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(sys.argv[1].replace("@", chr(0)))
            connection.recv(1)
        os._exit(0)
    os.wait()
    os._exit(0)
os.wait()
"""


def body(job: int = 42, uid: int = 1000, gpus: str = "0", at: float | None = None, **more: Any) -> bytes:
    """A prolog's or an epilog's environment; *at* is seconds of boot time."""
    told = {
        "SLURM_JOB_ID": job,
        "SLURM_JOB_UID": uid,
        "SLURM_JOB_GID": uid,
        "SLURM_JOB_GPUS": gpus,
        "SLURMD_NODENAME": NODE,
        "PATH": "/bin",
        **more,
    }
    if at is not None:
        told["GPULEASE_AT"] = f"{at:.2f}"
    return b"".join(f"{name}={value}\0".encode() for name, value in told.items())


@dataclass
class Site:
    """A house whose GPUs are Slurm's, and its scripts' calls."""

    house: House
    shards: int = 4

    def __post_init__(self) -> None:
        self.configure(self.shards)

    def configure(self, shards: int) -> None:
        """Write a gres.conf of the vega10 node's two GPUs."""
        directory = self.house.root / "etc/slurm"
        directory.mkdir(parents=True, exist_ok=True)
        lines = [f"Name=gpu File=/dev/dri/renderD{minor}" for minor in GPUS]
        lines += [f"Name=shard Count={shards} File=/dev/dri/renderD{minor}" for minor in GPUS if shards]
        (directory / "gres.conf").write_text("\n".join(lines) + "\n")

    def now(self) -> float:
        return self.house.clock.boot_ns() / 1e9

    def prolog(self, wait: float = 0, **told: Any) -> Verdict:
        return self.house.agent.slurm.prolog(admin(), body(**told), wait)

    def epilog(self, wait: float = 10, **told: Any) -> Verdict:
        at = told.pop("at", self.now())
        return self.house.agent.slurm.epilog(admin(), body(at=at, **told), wait)

    def granted(self, **told: Any) -> Lease:
        """The lease of a job's prolog."""
        verdict = self.prolog(**told)
        assert verdict.word is Word.GRANTED, verdict
        return self.leases(told.get("job", 42))[-1]

    def leases(self, job: int = 42) -> tuple[Lease, ...]:
        return self.house.ledger.leases(holder=(HolderKind.SLURM, str(job)))

    def spool(self, script: str, boot: str | None = None, raw: bytes | None = None, **told: Any) -> Path:
        """Leave a call that nobody answered; the clock's boot ids are made to look like the kernel's."""
        directory = self.house.spool
        directory.mkdir(mode=0o700, exist_ok=True)
        told.setdefault("at", self.now())
        name = f"{script}-{told.get('job', 42)}-{boot or self.house.clock.boot_id}-{told['at']:.2f}"
        (directory / name).write_bytes(body(**told) if raw is None else raw)
        return directory / name


@dataclass
class Stepds:
    """Copies of an interpreter that are called slurmstepd: root's daemons, with a user's task."""

    directory: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    connections: list[socket.socket] = field(default_factory=list)

    @property
    def program(self) -> Path:
        program = self.directory / "slurmstepd"
        if not program.exists():
            shutil.copy(os.path.realpath("/usr/bin/python3"), program)
        return program

    def daemon(self, name: str = "slurmstepd", **options: Any) -> subprocess.Popen[bytes]:
        """One that does nothing, under *name*."""
        program = self.program
        if name != "slurmstepd":
            program = Path(shutil.copy(program, self.directory / name))
        return self._start([program, "-c", "import time; time.sleep(600)"], **options)

    def task(self, uid: int, daemon: int = 0) -> Caller:
        """The task-prolog of a task of a new daemon, which runs as *daemon*, as it connects."""
        address = f"@nodeagent-stepd-{secrets.token_hex(8)}"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address.replace("@", "\0"))
            listener.listen()
            listener.settimeout(20)
            self._start(
                [self.program, "-c", STEPD, address, str(uid)], user=daemon, group=daemon, extra_groups=[]
            )
            connection, _ = listener.accept()
        self.connections.append(connection)
        peer = peer_of(connection)
        return Caller(peer.uid, peer.gid, frozenset(peer.groups), peer.pid, peer.pidfd, False)

    def end(self) -> None:
        for connection in self.connections:
            connection.close()
        for child in self.started:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()

    def _start(self, command: list[Any], **options: Any) -> subprocess.Popen[bytes]:
        environment = {"PYTHONHOME": "/usr"}  # where every user may look
        self.started.append(
            subprocess.Popen(command, env=environment, start_new_session=True, cwd="/", **options)
        )
        return self.started[-1]


class Scope:
    """Slurm's cgroup on the real mount, and a slurmd's acts in it."""

    def __init__(self, tree: CgroupTree, path: str) -> None:
        self.tree = tree
        self.path = path

    def directory(self, name: str = "job_42") -> Path:
        return self.tree.mount / self.path[1:] / name

    def step(self, pid: int, name: str = "job_42", step: str = "step_0") -> None:
        """Put a process into a step of the job, as slurmstepd does: existing directories are well."""
        place = self.directory(name) / step
        place.mkdir(parents=True, exist_ok=True)
        (place / "cgroup.procs").write_text(str(pid))

    def end_step(self, name: str = "job_42", step: str = "step_0") -> None:
        """Remove the step, and the job's directory with it, as slurmstepd does once they are empty."""
        (self.directory(name) / step).rmdir()
        self.directory(name).rmdir()
