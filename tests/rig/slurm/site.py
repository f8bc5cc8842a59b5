"""Slurm as its packages run it, on the guest: one node, jobs in cgroups, devices constrained, our scripts."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodeagent.adapters.cgroup_mount import find_mount

CGROUPS = find_mount() or Path("/sys/fs/cgroup")
ROOT = Path(__file__).parents[3]
SCRIPTS = Path("/usr/libexec/nodeagent/slurm")
SECONDS = 20 * float(os.environ.get("NODEAGENT_PATIENCE", "1"))
ADDRESS = "192.0.2.1"  # the C library resolves nothing where there are only loopback's own
SHARDS = 8
NEWER = Path("/dev/vdd")  # another Slurm's /usr: SLURM_ROOT of tests/rig/run
OF_SLURMD = ("system", "slurmd")  # in its scope, beside jobs
USER = "alice"
# What a job's task runs: opens the one render node that it may, then a command a line, an answer each.
TASK = """
for node in /dev/dri/renderD*; do (: <>"$node") 2>/dev/null && break; done
exec 3<>"$node"
echo "$SLURM_JOB_ID $node"
while read -r words; do
    case $words in
    end) exit 0 ;;
    show*) eval "echo \\"\\$${words#show }\\"" ;;
    *) if printf %s "$words" >&3; then echo ok; else echo refused; fi 2>/dev/null ;;
    esac
done
"""
SLURM_CONF = f"""\
ClusterName=rig
SlurmctldHost=rig({ADDRESS})
SlurmUser=slurm
AuthType=auth/munge
AuthInfo=cred_expire=15
CredType=cred/munge
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
MpiDefault=none
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,bf_interval=2,nohold_on_prolog_fail
SlurmdParameters=config_overrides
SlurmctldParameters=enable_configless
MessageTimeout=60
UnkillableStepTimeout=300
ReturnToService=2
KillWait=5
PrologFlags=Alloc,Contain
Prolog={SCRIPTS}/prolog
Epilog={SCRIPTS}/epilog
TaskProlog={SCRIPTS}/task-prolog
GresTypes=gpu,shard
NodeName=rig NodeAddr={ADDRESS} CPUs=32 RealMemory=1000 Gres=gpu:{{gpus}},shard:{{shards}}
PartitionName=main Nodes=rig Default=YES
"""
CGROUP_CONF = "ConstrainDevices=yes\n"
AGENT_CONF = '[slurm]\nrequest_from = "extra"\n'


def command(*words: str, seconds: float = SECONDS) -> str:
    """What a command of root's said; it must not fail."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


def as_user(*words: str) -> tuple[str, ...]:
    return ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups", "--", *words)


def until(what: Callable[[], Any], why: Callable[[], object] = lambda: "never") -> Any:
    """Look until *what* gives something true; how long it takes is not asserted beyond the wait."""
    deadline = time.monotonic() + SECONDS
    while not (found := what()):
        assert time.monotonic() < deadline, why()
        time.sleep(0.5)
    return found


class Task:
    """One job of one task that obeys: `do` writes to its render node."""

    def __init__(self, options: Sequence[str]) -> None:
        self._srun = subprocess.Popen(
            as_user("srun", "--unbuffered", *options, "sh", "-c", TASK),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd="/",
        )
        said = self._answer()
        assert said.count(" ") == 1, said + self._srun.communicate()[0]
        self.job, node = said.split()
        self.node = Path(node)

    def do(self, words: str) -> str:
        """``ok``, or ``refused``; the value, of ``show NAME``."""
        assert self._srun.stdin
        self._srun.stdin.write(words + "\n")
        self._srun.stdin.flush()
        return self._answer()

    def end(self) -> None:
        """End it, whether or not its job still runs."""
        try:
            self._srun.communicate("end\n", timeout=SECONDS)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._srun.kill()
            self._srun.communicate()

    def _answer(self) -> str:
        assert self._srun.stdout
        return self._srun.stdout.readline().strip()


@dataclass
class Site:
    """The node as its administrator and its users have it. *files*: render nodes, in gres.conf's order."""

    files: Sequence[Path]
    tasks: list[Task] = field(default_factory=list)

    def set_up(self) -> None:
        """Write the configuration, and install the scripts; nothing is started."""
        subprocess.run(
            ["ip", "address", "add", f"{ADDRESS}/32", "dev", "lo"], check=False, capture_output=True
        )
        Path("/etc/hosts").write_text(f"127.0.0.1 localhost\n{ADDRESS} rig\n")
        gpus = len(self.files)
        texts = {
            "/etc/slurm/slurm.conf": SLURM_CONF.format(gpus=gpus, shards=SHARDS * gpus),
            "/etc/slurm/gres.conf": "".join(map(_gres, self.files)),
            "/etc/slurm/cgroup.conf": CGROUP_CONF,
            "/etc/nodeagent/nodeagent.toml": AGENT_CONF,
            "/etc/nodeagent/prolog.conf": "deadline=99\nepilog_wait=120\n",
        }
        for name, text in texts.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(text)
        shutil.copytree(ROOT / "client/slurm", SCRIPTS, dirs_exist_ok=True)
        for script in SCRIPTS.iterdir():
            os.chown(script, 0, 0)
        for place in ("slurmctld", "slurmd"):
            Path(f"/var/lib/slurm/{place}").mkdir(parents=True, exist_ok=True)
        shutil.chown("/var/lib/slurm/slurmctld", "slurm")
        if NEWER.exists():
            _lay_over()

    def start(self) -> None:
        """Start the daemons, and wait until the node takes jobs."""
        command("systemctl", "start", "munge", "slurmctld", "slurmd")
        until(lambda: self.state() == "idle", self.trouble)

    def state(self) -> str:
        return command("sinfo", "--noheader", "--format=%T")

    def trouble(self) -> str:
        """What is known of why the node is not as it should be."""
        words = ("journalctl", "--no-pager", "-o", "cat", "-n", "60", "-u", "slurmd", "-u", "slurmctld")
        return f"{self.state()} {command('sinfo', '-R')}\n{command(*words)}"

    def task(self, *options: str) -> Task:
        """Start a job of one task."""
        self.tasks.append(Task(options))
        return self.tasks[-1]

    def shards(self, count: int) -> Task:
        """Start a job of so many shards."""
        return self.task(f"--gres=shard:{count}", f"--extra=gpulease:shards={count}")

    def jobs(self) -> list[str]:
        """The jobs that have not ended, epilog included."""
        return command("squeue", "--noheader", "--format=%A").split()

    def cgroup(self, job: str) -> Path:
        """The job's own: by its number, or from 26.05 on by its SLUID."""
        words = ("squeue", "--noheader", f"--jobs={job}", "--Format=sluid")  # older ones know no such field
        shown = subprocess.run(words, capture_output=True, text=True, check=False).stdout
        names = {f"job_{job}", *shown.split()}
        (found,) = (path for path in self.cgroups() if path.name in names)
        return found

    def cgroups(self) -> list[Path]:
        """Those of all jobs."""
        return [
            path for path in CGROUPS.glob("system.slice/*slurmstepd.scope/*/") if path.name not in OF_SLURMD
        ]

    def end_jobs(self) -> None:
        """End what a test left running."""
        for job in self.jobs():
            subprocess.run(["scancel", job], check=False)
        for task in self.tasks:
            task.end()
        self.tasks.clear()
        until(lambda: not self.jobs(), self.trouble)

    def stop(self) -> None:
        command("systemctl", "stop", "slurmd", "slurmctld", "munge")


def _lay_over() -> None:
    """Have the programs of the other Slurm: the guest's do with its C library; of plugins only its own."""
    place = Path("/run/slurm-usr")
    place.mkdir()
    command("mount", "-o", "ro", str(NEWER), str(place))
    command("mount", "-t", "overlay", "overlay", "-o", f"lowerdir={place}:/usr", "/usr")
    for plugins in place.glob("lib/*/slurm*"):
        command("mount", "--bind", str(plugins), f"/usr/{plugins.relative_to(place)}")
    command("systemctl", "daemon-reload")


def _gres(file: Path) -> str:
    return f"Name=gpu File={file} Flags=amd_gpu_env\nName=shard Count={SHARDS} File={file}\n"
