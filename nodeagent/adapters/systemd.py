"""Slices made and ended through systemd, where it manages the cgroups, so that PID 1 knows of each.

By `systemctl` and not by a D-Bus library: one more dependency for two calls, against a process (about 10 ms)
for each grant. systemd knows no dmem, and keeps its hands off +dmem and the limits: versions 257 and 262.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from nodeagent.domain.errors import OutsideFault

_BOOTED = Path("/run/systemd/system")  # sd_booted(3)
_PRIVATE = Path("/run/systemd/private")  # PID 1's own socket: no D-Bus daemon is needed
_MANAGED = Path("/sys/fs/cgroup")
_SECONDS = 20.0


class Systemd:
    """PID 1 as *systemctl* reaches it."""

    def __init__(self, systemctl: str) -> None:
        self._systemctl = systemctl

    def start(self, slice_: str) -> None:
        """Start the slice unit, and with it its cgroup; again is harmless. Raises OutsideFault."""
        self._run("start", slice_)

    def stop(self, slice_: str) -> None:
        """Stop the slice unit and all in it; one that does not run is success. Raises OutsideFault."""
        self._run("stop", slice_)

    def slices(self, pattern: str) -> frozenset[str]:
        """The names of the slice units that run and match *pattern*, a glob. Raises OutsideFault."""
        options = ("--type=slice", "--state=active", "--plain", "--no-legend", "--no-pager")
        told = self._run("list-units", pattern, *options)
        return frozenset(line.split()[0] for line in told.splitlines() if line.strip())

    def _run(self, verb: str, unit: str, *options: str) -> str:
        command = [self._systemctl, "--no-ask-password", "--quiet", *options, verb, "--", unit]
        try:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as fault:
            raise OutsideFault(unit, f"systemctl {verb}: {fault}") from fault
        if ran.returncode != 0:
            raise OutsideFault(unit, f"systemctl {verb}: {ran.stderr.strip() or ran.returncode}")
        return ran.stdout


def find_systemd(mount: Path, *, booted: Path = _BOOTED, private: Path = _PRIVATE) -> Systemd | None:
    """systemd, if it is PID 1, answers, and *mount* is where it keeps its cgroups."""
    systemctl = shutil.which("systemctl", path="/usr/bin:/bin")
    if systemctl is None or mount != _MANAGED or not booted.is_dir() or not private.exists():
        return None
    return Systemd(systemctl)
