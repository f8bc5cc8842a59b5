"""Which Slurm is tested: this machine's, or another that lies in a root of its own (SLURM_ROOT)."""

from __future__ import annotations

import os
import re
import subprocess

ROOT = os.environ.get("SLURM_ROOT", "")


def _version() -> tuple[int, int]:
    """The year and the month of its series; zeros where there is none."""
    at = ["chroot", ROOT] if ROOT else []
    try:
        said = subprocess.run([*at, "slurmctld", "-V"], check=True, capture_output=True, text=True).stdout
    except FileNotFoundError:
        return 0, 0
    year, month = re.findall(r"\d+", said)[:2]
    return int(year), int(month)


VERSION = _version()
# The text that job_submit.lua writes the word into, as an option: 22.05 has no `--extra`.
FIELD = "extra" if VERSION >= (23, 2) else "comment"
