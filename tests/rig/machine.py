"""The machine that the agent runs on in the guest: the shipped file of which fakegpu has the cards."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

SHIPPED = Path(__file__).parents[1] / "machines/mi300x-spx.json"
GPUS = Path("/sys/module/fakegpu/parameters/gpus")
KFD_PROC = Path("/sys/class/kfd/kfd/proc")
NODES = "sys/class/kfd/kfd/topology/nodes"


def write(path: Path) -> Path:
    """Write the machine file to *path*: each card has fakegpu's own gpu_id, where the module is loaded."""
    known = json.loads(SHIPPED.read_text())
    assumed = known.setdefault("assumed", {"why": "", "files": {}, "links": {}})
    gpus = GPUS.read_text().strip().split(",") if GPUS.exists() else []
    for node, gpu in enumerate(gpus, start=2):  # after the two processors
        assumed["files"][f"{NODES}/{node}/gpu_id"] = gpu.split(":")[-2] + "\n"
    path.write_text(json.dumps(known))
    return path


def show_processes(tree: Path) -> None:
    """Have the machine at *tree* show the processes that really are on fakegpu's cards.

    By a mount: what a link of a machine leads out to is not read.
    """
    if KFD_PROC.is_dir():
        shown = tree / str(KFD_PROC)[1:]
        shown.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "--bind", str(KFD_PROC), str(shown)], check=True)


def hide_processes(tree: Path) -> None:
    """Take that back, so that the tree can be removed; who still reads there reads to the end."""
    shown = tree / str(KFD_PROC)[1:]
    if shown.is_mount():
        subprocess.run(["umount", "--lazy", str(shown)], check=True)
