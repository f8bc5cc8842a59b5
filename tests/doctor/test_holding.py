"""What the doctor gathers of cgroups, VRAM limits, programs, Slurm and engines, from trees of files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nodeagent.adapters.hook_files import LIBRARY
from nodeagent.doctor import holding, outside
from nodeagent.domain.doctor.check import Unseen
from nodeagent.domain.level import Level
from nodeagent.domain.slurm_check import Finding
from nodeagent.service.kernel import HOLDS

REGION = "drm/0000:03:00.0/vram"
UNIX = "Num       RefCount Protocol Flags    Type St Inode Path\n"


def test_a_hybrid_hierarchy(node: Any) -> None:
    """Controllers of version 1 are named, systemd's own hierarchy is none; the mount is left as it was."""
    mount = node.cgroup2()
    lines = (node.root / "proc/self/mountinfo").read_text()
    lines += "31 1 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu\n"
    lines += "32 1 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n"
    node.write("proc/self/mountinfo", lines)
    (mount / "user.slice").mkdir()
    found = holding.cgroups(node.scene())
    assert (found.mount, found.legacy) == (str(mount), ("cpu", "cpuacct"))
    assert found.enabled == ("cpu", "cpuset", "memory", "pids") and found.writable is None
    assert not found.kills
    assert {entry.name for entry in mount.iterdir() if entry.is_dir()} == {"user.slice"}


def test_no_cgroup2(node: Any) -> None:
    """Without the mount nothing is said of it, and of VRAM limits that there are none."""
    scene = node.scene()
    assert holding.cgroups(scene).mount is None
    assert not holding.vram(scene).offered


def dmem(node: Any, *, outside_limit: str) -> None:
    """dmem with one region, of which user.slice may have *outside_limit*."""
    mount = node.is_a("rx7900xtx").cgroup2()
    (mount / "cgroup.controllers").write_text("memory dmem\n")
    (mount / "dmem.capacity").write_text(f"{REGION} 25753026560\n")
    (mount / "user.slice").mkdir()
    (mount / "user.slice/dmem.max").write_text(f"{REGION} {outside_limit}\n")


def tier(why: str) -> dict[str, Any]:
    return {
        "version": "1",
        "tiers": [{"name": "hook", "why": ""}, {"name": "dmem", "present": True, "why": why}],
    }


@pytest.mark.parametrize(
    ("limit", "why", "holds", "opened"),
    [
        ("0", HOLDS, True, {}),
        ("max", HOLDS, True, {"/user.slice": (REGION,)}),
        ("max", "set and do not hold: 0 were charged", False, {}),
    ],
    ids=["closed", "open", "not enforcing"],
)
def test_what_limits_are_worth(node: Any, limit: str, why: str, holds: bool, opened: dict[str, Any]) -> None:
    """The agent's word says whether limits hold, and the files whether sessions are closed."""
    dmem(node, outside_limit=limit)
    found = holding.vram(node.scene(ask=lambda target: tier(why)))
    assert (found.offered, found.capacity, found.holds) == (True, {REGION: 25753026560}, holds)
    assert (found.why, dict(found.open)) == (why, opened)


def test_nobody_tells_what_limits_are_worth(node: Any) -> None:
    """Without an agent, or with one that answers nonsense, it is not known."""
    dmem(node, outside_limit="max")

    def down(target: str) -> Any:
        raise OSError("refused")

    for ask in (None, down, lambda target: "nonsense"):
        assert holding.vram(node.scene(ask=ask)).holds is None


def test_a_hook_that_does_not_load(tmp_path: Path) -> None:
    """A file that is no library, or that others can write, is named; the real one loads."""
    broken = tmp_path / "libgpulease.so"
    broken.write_bytes(b"no library")
    broken.chmod(0o644)
    assert "cannot be preloaded" in (holding.hook_trouble(broken) or "")
    broken.chmod(0o666)
    assert "others" in (holding.hook_trouble(broken) or "")
    if LIBRARY.is_file() and not LIBRARY.stat().st_mode & 0o022:
        assert holding.hook_trouble(LIBRARY) is None


@pytest.mark.root
def test_what_is_left_in_shared_memory(node: Any) -> None:
    """Files of GPU libraries count whose user has no process; others' files never."""
    (node.root / "dev/shm").mkdir(parents=True)
    (node.root / "proc/12").mkdir()
    for name, uid in (("nccl-abc", 4711), ("torch_1", 4711), ("nccl-own", os.geteuid()), ("mine", 4711)):
        os.chown(node.write(f"dev/shm/{name}", ""), uid, uid)
    assert holding.programs(node.scene()).shm_leftovers == 2


def found_by_slurm() -> Sequence[Finding]:
    return [Finding(Level.WARN, "times", "too short")]


def test_slurms_files_and_calls(node: Any) -> None:
    """Where there is a file of Slurm's its check is asked; calls that wait are counted."""
    node.write("var/spool/prolog-7-0f7c1a0e-0000-0000-0000-000000000000-1.5", "x")
    (node.root / "var/spool").chmod(0o700)
    without = outside.slurm(node.scene(slurm=found_by_slurm))
    assert not isinstance(without, Unseen) and (without.findings, without.waiting) == (None, 1)
    node.write("etc/slurm/slurm.conf", "")
    with_files = outside.slurm(node.scene(slurm=found_by_slurm))
    assert not isinstance(with_files, Unseen) and with_files.findings == tuple(found_by_slurm())


def test_a_spool_that_others_can_write(node: Any) -> None:
    """It is trouble for root, and nothing that another user could tell."""
    node.write("var/spool/x", "")
    (node.root / "var/spool").chmod(0o777)
    found = outside.slurm(node.scene())
    assert not isinstance(found, Unseen) and "others" in (found.spool_trouble or "")
    assert isinstance(outside.slurm(node.scene(root_user=False)), Unseen)


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("0: 00000002 00000000 00010000 0001 01 77 /run/docker/plugins/nodeagent.sock\n", True),
        ("0: 00000002 00000000 00010000 0001 01 77 /var/run/docker/plugins/nodeagent.sock\n", True),
        ("0: 00000003 00000000 00000000 0001 03 77 /run/docker/plugins/nodeagent.sock\n", False),
        ("0: 00000002 00000000 00010000 0001 01 77 /run/docker/plugins/other.sock\n", False),
        ("", False),
    ],
    ids=["listens", "var", "connected", "other", "none"],
)
def test_who_listens(node: Any, line: str, answer: bool) -> None:
    """A listener is known by the kernel's list: to connect would start the unit that systemd listens for."""
    node.write("proc/net/unix", UNIX + line)
    assert outside.listens(outside.PLUGIN, node.root / "proc") is answer


def test_a_docker_that_does_not_answer(node: Any) -> None:
    """A socket without a daemon is said to be one; the CDI directory is looked at all the same."""
    node.write("run/docker.sock", "")
    (node.root / "run/cdi").mkdir()
    (node.root / "run/cdi").chmod(0o777)
    found = outside.engines(node.scene())
    assert found.installed and found.version is None and "docker.sock" in (found.trouble or "")
    assert "777" in (found.cdi_trouble or "")
