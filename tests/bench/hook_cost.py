"""What the hook adds, with and without it by turns: per allocation, other ioctl and program start.

On the hook tests' fake kernel, whose cost both ways hold.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench.figures import Figure, Subject, Taken, Target, Turn
from tests.hook.conftest import Node, running, unusable

ROUNDS = 400
STARTS = 20
WITHOUT = "without the hook"
# The targets are the design's. /dev/null refuses an allocation at once: the hook charges it and gives it back
# as for one that is had, and no imitated driver comes in between.
FIGURES = (
    Figure("hook-allocation", "an allocation and its release", "µs", WITHOUT, Target("above", 20)),
    Figure("hook-refused", "the same, refused at once", "µs", WITHOUT, Target("above", 20)),
    Figure("hook-ioctl", "any other ioctl", "µs", WITHOUT, Target("above", 0.2)),
    Figure("hook-start", "a program's start", "µs", WITHOUT, Target("above", 1000), guarded=True),
)


def inside(node: Node, *words: str) -> str:
    """The output of a program in the node's mounts."""
    return subprocess.run(node.command(*words), capture_output=True, text=True, check=True).stdout


def calls(node: Node, way: list[str], program: Path, driver: str) -> list[float]:
    """Nanoseconds per other ioctl, and per allocation with its release, where *driver* answers."""
    return [float(one) for one in inside(node, "env", *way, str(program), str(ROUNDS), driver).split()]


def started(node: Node, way: list[str]) -> float:
    """Microseconds of a program's start, of many in a row."""
    began = time.perf_counter()
    inside(node, "env", *way, "sh", "-c", f"for i in $(seq {STARTS}); do /bin/true; done")
    return (time.perf_counter() - began) / STARTS * 1e6


def turns() -> Iterator[Turn]:
    with running() as node:
        node.lease(1 << 30)
        program = node.directory / "hook_cost"
        source = Path(__file__).with_suffix(".c")
        subprocess.run(["cc", "-O2", "-o", str(program), str(source)], check=True)
        ways: tuple[list[str], list[str]] = ([], [f"LD_PRELOAD={node.library}"])
        while True:
            bare, hooked = (calls(node, way, program, "/dev/kfd") for way in ways)
            bare_null, hooked_null = (calls(node, way, program, "/dev/null") for way in ways)
            without, with_it = (started(node, way) for way in ways)
            yield {
                "hook-allocation": Taken([hooked[1] / 1e3], [bare[1] / 1e3]),
                "hook-refused": Taken([hooked_null[1] / 1e3], [bare_null[1] / 1e3]),
                "hook-ioctl": Taken([hooked[0] / 1e3], [bare[0] / 1e3]),
                "hook-start": Taken([with_it], [without]),
            }


SUBJECTS = {"hook": Subject("The hook", FIGURES, turns, count=31, missing=unusable)}
