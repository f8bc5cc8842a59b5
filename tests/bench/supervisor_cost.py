"""What the supervisor costs a call: the same loop alone, at the floor and supervised, in turns.

/dev/null stands for KFD, so that only the way there is measured; its counters are files of a directory.
The floor is a supervisor that says "go on" without a look: what is above it is ours.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gpulease.supervised import sealed
from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.cgroup_mount import find_mount
from nodeagent.adapters.hook_format import HookDevice
from nodeagent.adapters.inheritance import Inherited
from nodeagent.adapters.supervisor import BINARY, Launch, Offered, Supervisor
from nodeagent.domain.cuset import CuSet
from tests.bench.figures import Figure, Subject, Taken, Target, Turn

GPU = 4096
CALLS = 20_000
ALONE = "unsupervised"
FIGURES = (
    Figure(
        "supervised-allocation", "an allocation's ioctl", "µs", "the floor", Target("value", 15), guarded=True
    ),
    Figure("supervised-floor", "the floor: the same filter, answered without a look", "µs", ALONE),
    Figure("supervised-ioctl", "any other ioctl", "µs", ALONE),
)
HERE = Path(__file__).parent
HOOK = HERE.parents[1] / "nodeagent" / "hook"


def missing() -> str | None:
    if find_mount() is None or os.geteuid() != 0 or not BINARY.is_file():
        return "needs root, cgroup2 and a built supervisor"
    return None


def turns() -> Iterator[Turn]:
    mount = find_mount()
    assert mount is not None
    tree = CgroupTree(mount, f"gpulease_{secrets.token_hex(6)}.slice")
    with tempfile.TemporaryDirectory() as scratch:
        loop, floor = (Path(scratch) / name for name in ("loop", "floor"))
        compile_program(loop, HERE / "ioctl_loop.c")
        compile_program(floor, HERE / "notify_floor.c", HOOK / "supervisor_filter.c")
        place = f"{scratch}/proc/$$"
        words = f"exec {loop} /dev/null {GPU} {CALLS}"
        command = ("/bin/sh", "-c", f"mkdir -p {place}; echo 0 >{place}/vram_{GPU}; {words}")
        try:
            while True:
                alone, least = measured(output(*command)), measured(output(floor, *command))
                ours = measured(under_supervisor(tree, command, scratch))
                yield {
                    "supervised-allocation": Taken([ours[0]], [least[0]]),
                    "supervised-floor": Taken([least[0]], [alone[0]]),
                    "supervised-ioctl": Taken([ours[1]], [alone[1]]),
                }
        finally:
            tree.leave()


def compile_program(made: Path, *sources: Path) -> None:
    subprocess.run(["cc", "-O2", "-I", HOOK, "-o", made, *sources], check=True)


def output(*words: str | Path) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def measured(text: str) -> tuple[float, float]:
    """Microseconds of an allocation's call, and of another."""
    first, second = (float(one) / 1e3 for one in text.split())
    return first, second


def under_supervisor(tree: CgroupTree, command: tuple[str, ...], scratch: str) -> str:
    """What *command* prints, supervised as root, in a cgroup of its own."""
    supervisor = Supervisor(kfd=Path("/dev/null"), kfd_processes=Path(scratch, "proc"))
    reading, writing = os.pipe()
    report, told = os.pipe()
    null, cwd = os.open("/dev/null", os.O_RDWR), os.open("/", os.O_PATH)
    words, peer = sealed(command, {}), os.pidfd_open(os.getpid())
    with tree.open(tree.create(1)) as cgroup:
        try:
            supervisor.launch(
                Launch(
                    lease=1,
                    devices=(HookDevice(GPU, 128, 1 << 40, 104, 1, CuSet.parse("")),),
                    cgroup=cgroup.fileno(),
                    home=None,
                    peer=peer,
                    peer_pid=os.getpid(),
                    offered=Offered(words, null, writing, null, cwd, told),
                    uid=0,
                    gid=0,
                    groups=(),
                    inherited=Inherited(
                        0o022,
                        os.getpriority(os.PRIO_PROCESS, 0),
                        0,
                        False,
                        0,
                        frozenset(os.sched_getaffinity(0)),
                        {},
                    ),
                )
            )
        finally:
            for descriptor in (writing, told, null, cwd, words, peer):
                os.close(descriptor)
        with os.fdopen(reading) as output, os.fdopen(report) as end:
            text = output.read()
            end.read()
        while cgroup.populated():
            pass
        cgroup.remove()
    return text


SUBJECTS = {"supervisor": Subject("A supervised call", FIGURES, turns, count=9, missing=missing)}
