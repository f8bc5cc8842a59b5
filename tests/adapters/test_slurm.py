"""Where Slurm makes its jobs' cgroups, and the calls that its scripts left behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.slurm import job_scope
from nodeagent.adapters.spool import SpoolFiles
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.slurm import LARGEST_ENVIRONMENT, parse_environment

BOOT = "00000000-0000-0000-0000-00000000000a"
RECORD = f"epilog-42-{BOOT}-123.45"


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    """Directories that stand in for a cgroup2 mount."""
    made = tmp_path / "cgroup"
    made.mkdir()
    return made


@pytest.mark.parametrize(
    ("there", "scope"),
    [
        ([], None),
        (["system.slice/slurmd.service"], None),
        (["user.slice/a/slurmstepd.scope"], None),
        (["system.slice/slurmstepd.scope"], "/system.slice/slurmstepd.scope"),
        (["gpu.slice/slurmstepd.scope"], "/gpu.slice/slurmstepd.scope"),
        (["system.slice/n1_slurmstepd.scope"], "/system.slice/n1_slurmstepd.scope"),
        (["system.slice/n2_slurmstepd.scope"], None),
        (
            ["system.slice/slurmstepd.scope", "system.slice/n1_slurmstepd.scope"],
            "/system.slice/n1_slurmstepd.scope",
        ),
    ],
)
def test_slurms_scope_is_found_by_its_names(mount, there, scope):
    """Of CgroupSlice= and of several slurmds, too; another node's is not this one's."""
    for path in there:
        (mount / path).mkdir(parents=True)
    assert job_scope(CgroupTree(mount, "gpulease.slice"), "n1") == scope


def test_the_scope_in_use_counts(mount):
    """One that an earlier configuration left behind is empty."""
    for path in ("a.slice", "b.slice"):
        (mount / path / "slurmstepd.scope").mkdir(parents=True)
    (mount / "b.slice/slurmstepd.scope/cgroup.events").write_text("populated 1\n")
    assert job_scope(CgroupTree(mount, "gpulease.slice"), None) == "/b.slice/slurmstepd.scope"


def test_records_are_read_by_their_names(tmp_path):
    """What is still being written has another name, and so has what is none."""
    for name in (RECORD, f".{RECORD}", "epilog-42", f"task-42-{BOOT}-1.0", f"{RECORD}.new"):
        (tmp_path / name).write_bytes(b"SLURM_JOB_ID=42\0")
    (found,) = SpoolFiles(tmp_path).read()
    assert (found.script, found.boot_id, found.body) == ("epilog", BOOT, b"SLURM_JOB_ID=42\0")
    SpoolFiles.remove(found)
    SpoolFiles.remove(found)
    assert not found.path.exists()
    assert list(SpoolFiles(tmp_path / "none").read()) == []


@pytest.mark.root
@pytest.mark.parametrize("how", ["owner", "writable", "record", "link", "pipe"])
def test_what_others_may_have_written_is_no_record(tmp_path, how):
    """A directory or file of a user's, or a link or a pipe in its place, says nothing of jobs."""
    path = tmp_path / RECORD
    if how == "link":
        path.symlink_to("/etc/hostname")
    elif how == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(b"")
    if how == "owner":
        os.chown(tmp_path, 1000, 1000)
    elif how == "writable":
        tmp_path.chmod(0o777)
    elif how == "record":
        os.chown(path, 1000, 1000)
    with pytest.raises(OutsideFault):
        list(SpoolFiles(tmp_path).read())


def test_a_record_that_is_too_long_is_no_environment(tmp_path):
    """It is read to no more than one byte over the limit, which the parser refuses."""
    (tmp_path / RECORD).write_bytes(b"A" * (LARGEST_ENVIRONMENT + 100))
    (found,) = SpoolFiles(tmp_path).read()
    assert len(found.body) == LARGEST_ENVIRONMENT + 1
    with pytest.raises(Exception, match="larger"):
        parse_environment(found.body)
