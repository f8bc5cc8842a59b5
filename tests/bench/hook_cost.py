"""What the hook adds, with and without it by turns in one run: per allocation, other ioctl and program start.

python tests/bench/hook_cost.py     as root; on the hook tests' fake kernel
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.hook.conftest import Node, running, unusable  # noqa: E402 - found by the path above

TURNS = 15
ROUNDS = 400
STARTS = 20
# What the design allows: microseconds added. /dev/null refuses an allocation at once: the hook charges it and
# gives it back as for one that is had, and no imitated driver comes in between.
ALLOWED = {
    "allocation and release": 20.0,
    "the same, refused at once": 20.0,
    "other ioctl": 0.2,
    "program start": 1000.0,
}


def inside(node: Node, *words: str) -> str:
    """The output of a program in the node's mounts."""
    return subprocess.run(node.command(*words), capture_output=True, text=True, check=True).stdout


def calls(node: Node, way: list[str], program: Path, driver: str) -> list[float]:
    """Nanoseconds per other ioctl, and per allocation with its release, where *driver* answers."""
    return [float(one) for one in inside(node, "env", *way, str(program), str(ROUNDS), driver).split()]


def turns(node: Node, program: Path) -> Iterator[tuple[str, float, float]]:
    """(what, microseconds without, microseconds with), many times over."""
    ways = ([], [f"LD_PRELOAD={node.library}"])
    for _ in range(TURNS):
        taken = [calls(node, way, program, "/dev/kfd") for way in ways]
        yield "other ioctl", taken[0][0] / 1e3, taken[1][0] / 1e3
        yield "allocation and release", taken[0][1] / 1e3, taken[1][1] / 1e3
        taken = [calls(node, way, program, "/dev/null") for way in ways]
        yield "the same, refused at once", taken[0][1] / 1e3, taken[1][1] / 1e3
        starts = []
        for way in ways:
            began = time.perf_counter()
            loop = f"for i in $(seq {STARTS}); do /bin/true; done"
            inside(node, "env", *way, "sh", "-c", loop)
            starts.append((time.perf_counter() - began) / STARTS * 1e6)
        yield "program start", starts[0], starts[1]


def main() -> None:
    if reason := unusable():
        sys.exit(f"hook_cost: {reason}")
    with running() as node:
        node.lease(1 << 30)
        program = node.directory / "hook_cost"
        source = Path(__file__).with_suffix(".c")
        subprocess.run(["cc", "-O2", "-o", str(program), str(source)], check=True)
        found: dict[str, list[tuple[float, float]]] = {}
        for what, without, hooked in turns(node, program):
            found.setdefault(what, []).append((without, hooked))
    print(
        f"{'':26} {'without':>10} {'with':>10} {'added':>10} {'allowed':>10}  (µs, medians of {TURNS} pairs)"
    )
    for what, pairs in found.items():
        without, hooked = (median(pair[side] for pair in pairs) for side in (0, 1))
        added = median(pair[1] - pair[0] for pair in pairs)
        print(f"{what:26} {without:10.3f} {hooked:10.3f} {added:10.3f} {ALLOWED[what]:10.1f}")


if __name__ == "__main__":
    main()
