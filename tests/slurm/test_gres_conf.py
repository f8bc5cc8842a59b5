"""What `nodeagent slurm gres-conf` prints, as the real slurmd reads it."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from nodeagent.adapters import machine
from nodeagent.cli.main import cli

from .agent import CONFIG, SOCKET
from .lab import Lab

DRM_MAJOR = 226
GRES = re.compile(r"Gres Name=(\w+) Type=(\S+) Count=(\d+) .*File=(\S+)")
# What is not the node's GPUs' own: a cluster of one node that never starts.
CLUSTER = """
ClusterName=lab
SlurmctldHost=localhost
SlurmUser=root
SlurmdSpoolDir={place}
PartitionName=main Nodes=ALL
"""

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("slurmd") is None, reason="needs root, for device nodes, and slurmd"
)


def printed(name: str, only: str, *words: str) -> str:
    done = CliRunner().invoke(
        cli, ["slurm", "gres-conf", "--simulate", name, "--node", "n1", "--only", only, *words]
    )
    assert done.exit_code == 0, done.output
    return done.output


def read_by_slurmd(name: str, place: Path, *words: str) -> list[tuple[str, ...]]:
    """Name, type, count and render node of each of slurmd's records, from the printed files."""
    (place / "dri").mkdir()
    gres = printed(name, "gres.conf", *words).replace("/dev/dri", str(place / "dri"))
    slurm = printed(name, "slurm.conf", *words).replace(
        "#   NodeName=n1", "NodeName=n1 NodeHostname=localhost"
    )
    for minor in range(128, 192):
        os.mknod(place / f"dri/renderD{minor}", stat.S_IFCHR | 0o600, os.makedev(DRM_MAJOR, minor))
    (place / "gres.conf").write_text(gres)
    (place / "slurm.conf").write_text(CLUSTER.format(place=place) + slurm)
    done = subprocess.run(
        ["slurmd", "-G", "-N", "n1", "-f", str(place / "slurm.conf")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0 and "error" not in said and "fatal" not in said, said
    return [(*found[:3], found[3].rpartition("/")[2]) for found in GRES.findall(said)]


@pytest.mark.parametrize(
    "name",
    [
        # slurmd takes its time over 63 partitions.
        pytest.param(name, marks=[pytest.mark.slow] if name == "mi300x-cpx" else [])
        for name in machine.names()
    ],
)
def test_slurmd_accepts_what_is_printed(name: str, tmp_path: Path) -> None:
    """Each GPU of the machine, with its shards, in the order of the files; no error and no warning."""
    records = read_by_slurmd(name, tmp_path)
    gpus = [record for record in records if record[0] == "gpu"]
    shards = [record for record in records if record[0] == "shard"]
    minors = [int(record[3].removeprefix("renderD")) for record in gpus]
    assert minors == sorted(minors)
    assert [record[3] for record in shards] == [record[3] for record in gpus]
    assert len({record[2] for record in shards}) == 1
    assert f"shard:{sum(int(record[2]) for record in shards)}" in printed(name, "slurm.conf")


def test_a_chosen_number_of_shards_reaches_slurmd(tmp_path: Path) -> None:
    """--shards is what each GPU has in slurmd's eyes."""
    records = read_by_slurmd("mi300x-spx", tmp_path, "--shards", "4")
    assert {record[2] for record in records if record[0] == "shard"} == {"4"}


@pytest.mark.slurm
def test_the_check_of_a_running_cluster(lab: Lab) -> None:
    """With a real Slurm, our scripts and an agent nothing fails; the warning is the lab's own."""
    words = ("slurm", "check", "--config", CONFIG, "--socket", SOCKET, "--simulate", "mi300x-spx")
    done = lab.node.space.run(sys.executable, "-m", "nodeagent.cli.main", *words)
    assert done.returncode == 1, done.stdout + done.stderr
    warned = {line.split()[1] for line in done.stdout.splitlines() if not line.startswith("OK")}
    assert warned == {"cgroup.conf:"}
    assert "OK   agent: keeps 8 devices for Slurm" in done.stdout
