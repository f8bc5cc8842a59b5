"""A Slurm cluster on this machine, in namespaces of its own: munged, slurmctld, and nodes with a slurmd each.

Its users, settings, ports and files are seen in there alone. All of it is gone when the fixture ends, and
when the tests are killed. No systemd, and no cgroups of Slurm's: it follows processes by proctrack/linuxproc.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from . import settings, versions
from .node import Node, running_node
from .space import OWN_NET, ROOT, Space, space

Found = TypeVar("Found")
SECONDS = 30
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "unshare", "nsenter", "ip")
IN_SERVICE = ("idle", "mixed", "allocated", "completing", "planned")
# /etc and /usr/libexec with ours on top, an empty /run, and an address: the C library resolves nothing where
# there are only loopback's own. Arguments: the cluster's directory, the address, the root of another Slurm.
# That one's programs then lie over this machine's, which do with its newer C library; its plugins hide theirs
HEAD = """
if [ "$3" ]; then
    mount -t overlay overlay -o "lowerdir=$3/usr:/usr" /usr
    for plugins in "$3"/usr/lib/*/slurm*; do mount --bind "$plugins" "${plugins#"$3"}"; done
fi
hostname head
ip link set lo up
ip address add "$2/32" dev lo
mount -t tmpfs -o mode=755 tmpfs "$1/ours"
for place in /etc /usr/libexec; do
    over=$1/ours$place
    mkdir -p "$over/top" "$over/work"
    mount -t overlay overlay -o "lowerdir=$place,upperdir=$over/top,workdir=$over/work" "$place"
done
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -m 755 -p /run/munge /run/nodeagent /etc/slurm /etc/nodeagent
"""


@dataclass
class Cluster:
    """The head, and the nodes by name."""

    head: Space
    directory: Path
    nodes: dict[str, Node] = field(default_factory=dict)

    def slurm(self, *words: str, user: str | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command of Slurm's on the head, as a user by name; root if none is given."""
        uid = None if user is None else settings.USERS[user]
        return self.head.run(*words, user=uid, **options)

    def srun(self, *words: str, user: str = "alice", **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a job of one step to its end."""
        return self.slurm("srun", *words, user=user, **options)

    def sbatch(self, script: str, *options: str, user: str = "alice", **more: Any) -> str:
        """Submit a script; the id of its job."""
        words = ("sbatch", "--parsable", "--output=/dev/null", *options)
        done = self.slurm(*words, user=user, input=f"#!/bin/sh\n{script}\n", **more)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def job(self, job: str) -> dict[str, str]:
        """What scontrol shows of a job, by name."""
        shown = self.slurm("scontrol", "--oneliner", "show", "job", job).stdout
        return dict(word.split("=", 1) for word in shown.split() if "=" in word)

    def queue(self) -> dict[str, str]:
        """The state of each job that has not ended, epilog included, by id."""
        lines = self.slurm("squeue", "--noheader", "--format=%A %T").stdout.splitlines()
        return dict(line.split() for line in lines)

    def out_of_service(self) -> dict[str, str]:
        """Why nodes take no jobs, by name."""
        lines = self.slurm("sinfo", "--noheader", "--Node", "--format=%N %T").stdout.splitlines()
        states = dict(line.split() for line in lines)
        out = [name for name in self.nodes if states.get(name, "absent").rstrip("*") not in IN_SERVICE]
        return {name: self.reason(name) or states.get(name, "absent") for name in out}

    def reason(self, node: str) -> str:
        """Why a node is not to be used, as `sinfo -R` shows it."""
        return self.slurm("sinfo", "--noheader", "-R", f"--nodes={node}", "--format=%200E").stdout.strip()

    def cancel(self, *jobs: str) -> None:
        """End jobs, and wait until they are gone."""
        self.slurm("scancel", *jobs)
        self.ended(*jobs)

    def end_all(self) -> None:
        if jobs := self.queue():
            self.cancel(*jobs)

    def ended(self, *jobs: str, seconds: float = SECONDS) -> None:
        """Wait until jobs are gone, their epilogs included; without any, until none is left."""
        self.until(lambda: not (set(jobs) & self.queue().keys() if jobs else self.queue()), seconds=seconds)

    def resume(self) -> None:
        """Take all nodes into service again."""
        for name in self.out_of_service():
            self.slurm("scontrol", "update", f"NodeName={name}", "State=RESUME")
        self.until(lambda: not self.out_of_service())

    def until(
        self, what: Callable[[], Found], why: Callable[[], str] | None = None, seconds: float = SECONDS
    ) -> Found:
        """Look until *what* gives something true; how long it takes is not asserted beyond the wait."""
        deadline = time.monotonic() + seconds
        while not (found := what()):
            assert time.monotonic() < deadline, f"{why() if why else 'never'}\n{self.logs()}"
            time.sleep(0.1)
        return found

    def logs(self) -> str:
        """The last lines of each daemon's log."""
        logs = sorted((self.directory / "log").iterdir())
        return "".join(f"== {log.name}\n{log.read_text(errors='replace')[-2000:]}\n" for log in logs)


def missing() -> str | None:
    """The program that this machine lacks for a cluster."""
    return next((name for name in PROGRAMS if shutil.which(name) is None), None)


@contextlib.contextmanager
def running_cluster(scripts: str = settings.OURS) -> Iterator[Cluster]:
    """A cluster of gpu0 and cpu0 that is ready for jobs; the lines *scripts* are in its slurm.conf."""
    directory = Path(tempfile.mkdtemp(prefix="slurm-"))
    directory.chmod(0o755)
    with contextlib.ExitStack() as last:
        last.callback(shutil.rmtree, directory, ignore_errors=True)
        for name in ("ours", "log", "state", "spool"):
            (directory / name).mkdir(mode=0o755)
        arguments = (str(directory), settings.ADDRESS, versions.ROOT)
        head = last.enter_context(space(HEAD, *arguments, own=OWN_NET))
        cluster = Cluster(head, directory)
        _write_settings(cluster, settings.slurm_conf(str(directory), scripts))
        _install_scripts(cluster)
        head.daemon("munged", "--force", f"--socket={directory}/munge")
        head.daemon("slurmctld")
        for node in (settings.GPU0, settings.CPU0):
            cluster.nodes[node.name] = last.enter_context(running_node(node, head, directory / node.name))
        cluster.until(lambda: not cluster.out_of_service())
        yield cluster


def _write_settings(cluster: Cluster, slurm_conf: str) -> None:
    """Write what the daemons read from /etc, which is the cluster's own."""
    etc = cluster.head.root / "etc"
    shutil.chown(cluster.directory / "state", "slurm")
    (etc / "slurm/slurm.conf").write_text(slurm_conf)
    (etc / "slurm/gres.conf").write_text(settings.gres_conf())
    (etc / "munge").mkdir(exist_ok=True)
    key = etc / "munge/munge.key"
    key.unlink(missing_ok=True)
    key.touch(mode=0o400)
    key.write_bytes(secrets.token_bytes(128))
    ours = {"passwd": settings.passwd(), "group": settings.group(), "hosts": settings.hosts()}
    for name, lines in ours.items():
        with (etc / name).open("a") as file:
            file.write(lines)


def _install_scripts(cluster: Cluster) -> None:
    """Install what Slurm calls, as a site does."""
    root = cluster.head.root
    subprocess.run(["make", "-s", "install-slurm", f"DESTDIR={root}"], cwd=ROOT, check=True)
    submit = (root / settings.SCRIPTS.lstrip("/") / "job_submit.lua.example").read_text()
    lua = submit.replace('field = "extra"', f'field = "{versions.FIELD}"')
    (root / "etc/slurm/job_submit.lua").write_text(lua)
