"""Where this machine's cgroup2 is, and which of its cgroups a process is in. Only to name things by."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

PROC = Path("/proc")


def mount_point(proc: Path = PROC) -> Optional[str]:
    """The first cgroup2 mount; None where there is none."""
    lines = _lines(proc / "self" / "mountinfo")
    return next((line.split()[4] for line in lines if " - cgroup2 " in line), None)


def cgroup_of(pid: int, proc: Path = PROC) -> Optional[str]:
    """The process's cgroup as a path below the mount; None at the root, or where it cannot be told."""
    below = next((line[3:] for line in _lines(proc / str(pid) / "cgroup") if line.startswith("0::")), "/")
    return None if below == "/" else below


def below_mount(path: str, proc: Path = PROC) -> str:
    """*path* as the agent names cgroups: from the mount on."""
    mount = mount_point(proc)
    if mount is None or not path.startswith(mount.rstrip("/") + "/"):
        return path
    return path[len(mount.rstrip("/")) :].rstrip("/")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
