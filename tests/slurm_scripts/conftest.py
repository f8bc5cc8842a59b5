"""The scripts as installed, but in a directory of the test's own, in each shell and with each client."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from .played import PlayedAgent

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ("prolog", "epilog", "task-prolog", "await-agent", "agent.sh", "records.sh", "ask.py")
SHELLS = {"dash": "/usr/bin/dash", "bash": "/usr/bin/bash", "busybox": "/usr/bin/busybox"}
# The client is a process of its own: with one shell it is as with any.
EVERY_WAY = pytest.mark.parametrize(
    ("shell", "client"), [*((shell, "curl") for shell in SHELLS), ("dash", "ask.py")]
)
CURLS = "/usr/bin/curl /bin/curl /usr/local/bin/curl"
NOBODY = 65534
# What slurmd gives a prolog (docs of Slurm 25.11), for a job of user 1001.
JOB = {
    "SLURM_JOB_ID": "42",
    "SLURM_JOB_UID": "1001",
    "SLURM_JOB_GID": "1001",
    "SLURM_JOB_ACCOUNT": "physics",
    "SLURM_JOB_GPUS": "0,1",
    "SLURM_JOB_RESTART_COUNT": "0",
    "SLURM_JOB_START_TIME": "1790000000",
    "SLURM_JOB_PARTITION": "main",
    "SLURM_JOB_EXCLUSIVE": "NO",
    "SLURM_JOB_EXTRA": "gpulease:shards=2",
    "SLURMD_NODENAME": "n0",
    "SLURM_CONF": "/etc/slurm/slurm.conf",
    "SLURM_SCRIPT_CONTEXT": "prolog_slurmd",
}
TASK = {"SLURM_JOB_ID": "42", "SLURM_JOB_GPUS": "0", "SLURM_STEP_GPUS": "0", "SLURM_TASK_PID": "4711"}
Environment = Mapping[str, str | bytes]


@dataclass(frozen=True)
class Ended:
    """How a script ended, and what it said."""

    code: int
    stdout: str
    stderr: str


@dataclass
class Site:
    """One node's copy of the scripts, its settings and directories."""

    top: Path

    @property
    def scripts(self) -> Path:
        return self.top / "scripts"

    @property
    def socket(self) -> Path:
        return self.top / "run" / "api.sock"

    @property
    def settings(self) -> Path:
        return self.top / "etc" / "prolog.conf"

    def path(self, *names: str) -> Path:
        """Something in the run directory of the scripts."""
        return self.top.joinpath("run", "slurm", *names)

    @property
    def spooled(self) -> list[Path]:
        """The calls in the spool, whole or not."""
        return sorted((self.top / "spool").glob("*")) if (self.top / "spool").is_dir() else []

    def configure(self, **values: str | int) -> None:
        """Write the settings file: the site's directories, and *values*."""
        given = {
            "socket": self.socket,
            "run": self.path(),
            "spool": self.top / "spool",
            "bypass": self.top / "run" / "bypass" / "gpulease",
            "deadline": 60,
            "epilog_wait": 60,
        }
        self.settings.write_text("".join(f"{key}={value}\n" for key, value in (given | values).items()))

    def edit(self, name: str, old: str, new: str) -> None:
        """Change the copy of script *name*."""
        path = self.scripts / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def start(
        self, name: str, environment: Environment, uid: int | None = None, arguments: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        """Start script *name* as Slurm does: with *environment* alone, and its output a pipe.

        A user's, which is a task-prolog, has neither stdin nor stderr.
        """
        user = {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}
        return subprocess.Popen(
            [self.scripts / name, *arguments],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            cwd="/",
            preexec_fn=None if uid is None else close_all_but_stdout,
            **user,
        )

    def run(
        self, name: str, environment: Environment, uid: int | None = None, arguments: Sequence[str] = ()
    ) -> Ended:
        """The same to its end: nothing of it may be left then, neither a process nor a descriptor."""
        with self.start(name, environment, uid, arguments) as started:
            stdout, stderr = started.communicate(timeout=60)
        assert processes_of_session(started.pid) == []
        return Ended(started.returncode, stdout.decode(errors="replace"), stderr.decode(errors="replace"))

    def prolog(self, **changes: str | bytes) -> Ended:
        return self.run("prolog", JOB | changes)

    def epilog(self, **changes: str | bytes) -> Ended:
        return self.run("epilog", JOB | changes)

    def task(self, **changes: str | bytes) -> Ended:
        """The task-prolog, as a user who is not root."""
        return self.run("task-prolog", TASK | changes, uid=NOBODY)


def close_all_but_stdout() -> None:
    """What slurmstepd does before it starts a task-prolog."""
    os.close(0)
    os.close(2)


def processes_of_session(session: int) -> list[int]:
    """Processes that the leader of *session* left behind."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, its_session = stat.read_text().rsplit(")", 1)[1].split()[:4]
            if int(its_session) == session and state != "Z":
                found.append(int(stat.parent.name))
    return found


def install(top: Path, shell: str = "dash") -> Site:
    """The scripts in the directory *top*, which other users may enter, run by root's shell *shell*."""
    top.chmod(0o755)
    made = Site(top)
    for directory in (made.scripts, made.socket.parent, made.settings.parent):
        directory.mkdir()
    sh = top / "sh"
    sh.symlink_to(SHELLS[shell])
    for name in SCRIPTS:
        shutil.copy2(ROOT / "client" / "slurm" / name, made.scripts / name)
        text = (made.scripts / name).read_text()
        text = text.replace("/usr/libexec/nodeagent/slurm", str(made.scripts))
        text = text.replace("/etc/nodeagent/prolog.conf", str(made.settings)).replace("/bin/sh", str(sh))
        (made.scripts / name).write_text(text)
        os.chown(made.scripts / name, 0, 0)
    return made


@pytest.fixture
def shell() -> str:
    """The name of the shell that is /bin/sh; see `every_shell`."""
    return "dash"


@pytest.fixture
def client() -> str:
    """What asks the agent: curl, or the fallback."""
    return "curl"


@pytest.fixture
def site(shell: str, client: str) -> Iterator[Site]:
    """The scripts in a directory that other users may enter, run by root's shell *shell*."""
    if not Path(SHELLS[shell]).exists():
        pytest.skip(f"needs {SHELLS[shell]}")
    if client == "curl" and not Path("/usr/bin/curl").exists():
        pytest.skip("needs /usr/bin/curl")
    top = Path(tempfile.mkdtemp(prefix="slurm-"))  # short, because a unix socket's path is
    made = install(top, shell)
    if client != "curl":
        made.edit("agent.sh", CURLS, str(top / "no-curl"))
    made.configure()
    try:
        yield made
    finally:
        shutil.rmtree(top, ignore_errors=True)


@pytest.fixture
def agent(site: Site) -> Iterator[PlayedAgent]:
    """An agent behind the site's socket."""
    played = PlayedAgent(site.socket)
    try:
        yield played
    finally:
        played.close()


@pytest.fixture
def until() -> Callable[[Callable[[], object]], None]:
    """Wait until something is true."""

    def wait(what: Callable[[], object]) -> None:
        end = time.monotonic() + 60
        while not what():
            assert time.monotonic() < end, "it never came true"
            time.sleep(0.02)

    return wait
